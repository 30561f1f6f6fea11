"""A store in a folder, with the same promises as S3: whole objects, conditional writes.

The folder may lie on NFS: writes go to a temporary file beside the target, then one atomic link or rename.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pyarrow.fs
from filelock import FileLock

from pipeline.errors import StorageError
from pipeline.storage import Conflict, Entries, Entry, Names, Store, checked_name

TEMPORARY = ".partial-"
LOCK = ".write.lock"


class LocalStore(Store):
    """Objects as files under `root`, an absolute path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)

    def child(self, *names: str) -> "LocalStore":
        return LocalStore(self.root.joinpath(*map(checked_name, names)))

    def read(self, name: str) -> bytes:
        with _reported("read", self._path(name)):
            return self._path(name).read_bytes()

    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        try:
            data = self.read(name)
        except FileNotFoundError:
            return None
        return data, _tag(data)

    def write(self, name: str, data: bytes, *, if_absent: bool = False, if_tag: str | None = None) -> str:
        path = self._path(name)
        with _reported("write", path):
            with self._temporary(path) as (file, temporary):
                file.write(data)
                _sync(file)
                if if_absent:
                    self._link(temporary, path)
                elif if_tag is not None:
                    with FileLock(path.parent / LOCK):
                        found = self.read_tagged(name)
                        if found is None or found[1] != if_tag:
                            raise Conflict(f"{path} was changed by another process")
                        temporary.replace(path)
                else:
                    temporary.replace(path)
            _sync_folder(path.parent)
        return _tag(data)

    def upload(self, local: Path, name: str) -> None:
        path = self._path(name)
        with _reported("write", path), local.open("rb") as source:
            with self._temporary(path) as (file, temporary):
                shutil.copyfileobj(source, file, 1 << 20)
                _sync(file)
                temporary.replace(path)
            _sync_folder(path.parent)

    def download(self, name: str, local: Path) -> None:
        path = self._path(name)
        with _reported("read", path):
            source = path.open("rb")
        # What fails from here on is nearly always the writing: a full disk, a limit on sizes.
        with source, _reported("write", local), self._temporary(local) as (file, temporary):
            shutil.copyfileobj(source, file, 1 << 20)
            temporary.replace(local)

    def list(self, prefix: str = "") -> Entries:
        start = self._path(prefix) if prefix else self.root
        entries = []
        with _reported("list", start):
            for folder, _, files in os.walk(start, onerror=_raise_unless_missing):
                for file in files:
                    if _is_ours(file):
                        continue
                    path = Path(folder, file)
                    try:
                        status = path.stat()
                    except FileNotFoundError:  # deleted meanwhile
                        continue
                    entries.append(
                        Entry(
                            path.relative_to(self.root).as_posix(),
                            status.st_size,
                            f"{status.st_mtime_ns:x}-{status.st_size:x}",
                            datetime.fromtimestamp(status.st_mtime, UTC),
                        )
                    )
        return sorted(entries, key=lambda entry: entry.name)

    def folders(self, prefix: str = "") -> Names:
        start = self._path(prefix) if prefix else self.root
        with _reported("list", start):
            try:
                # Of pathlib, for which a link in a circle is no folder; os.scandir's own would raise.
                return sorted(entry.name for entry in os.scandir(start) if Path(entry.path).is_dir())
            except FileNotFoundError:
                return []

    def exists(self, name: str) -> bool:
        with _reported("read", self._path(name)):
            return self._path(name).is_file()

    def delete(self, prefix: str) -> None:
        path = self._path(prefix)
        with _reported("delete", path):
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            except FileNotFoundError:
                return

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        return pyarrow.fs.LocalFileSystem(), str(self.root)

    def _path(self, name: str) -> Path:
        return self.root / checked_name(name)

    @contextmanager
    def _temporary(self, target: Path) -> Iterator[tuple[BinaryIO, Path]]:
        """An open file in the folder of `target` (a rename works only within one filesystem), deleted unless moved."""
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                # mkstemp makes files that only their owner reads; on shared storage colleagues read runs.
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                yield file, temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _link(self, temporary: Path, path: Path) -> None:
        """Give a complete file its name, only if the name is free."""
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise Conflict(f"{path} exists already") from None
        except (PermissionError, NotImplementedError) as error:
            # Some network and FAT filesystems know no hard links: then a lock, which holds among our own processes.
            if not os.access(path.parent, os.W_OK):
                raise error
            with FileLock(path.parent / LOCK):
                if path.exists():
                    raise Conflict(f"{path} exists already") from None
                temporary.replace(path)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_ours(name: str) -> bool:
    return name.startswith(TEMPORARY) or name == LOCK


def _umask() -> int:
    # The only way to read it is to set it. Files that another thread makes in between get the stricter mode.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _reported(action: str, path: Path) -> Iterator[None]:
    """Turn errors of the operating system into StorageError; FileNotFoundError stays what it is."""
    try:
        yield
    except FileNotFoundError:
        if path.is_symlink():
            raise StorageError(f"storage: cannot {action} {path}: it is a link to nothing") from None
        raise
    except OSError as error:
        raise StorageError(f"storage: cannot {action} {error.filename or path}: {error.strerror or error}") from error
