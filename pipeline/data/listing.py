"""Paths, globs and folders to files, on a local disk and in S3 by the same rules."""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from pipeline.config import Storage
from pipeline.errors import StorageError, UserError

MAGIC = re.compile(r"[*?\[]")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w-]*")  # how the hub names one, and how a folder may be called
QUERY = re.compile(r"\?[A-Za-z_]+=.*$")  # a "?" without "=" behind it is part of a glob


@dataclass(frozen=True)
class Found:
    """A file: its absolute path or address, its size in bytes, and what `tag` gives if the listing has told it."""

    path: str
    size: int
    tag: str | None = None


def remote(path: str) -> bool:
    """Whether the path is an `s3://` address. Raises UserError for any other scheme but `file://` and `hf://`."""
    scheme = SCHEME.match(path)
    if scheme and scheme[1] not in ("s3", "file", "hf"):
        raise UserError(
            f"{path}: the scheme {scheme[1]!r} is not supported; give a local path, s3://bucket/key or hub:owner/name"
        )
    return bool(scheme and scheme[1] == "s3")


def bare(path: str) -> str:
    """The path without the query string that an `s3://` address may end in."""
    return QUERY.sub("", path) if remote(path) else path


def resolve(path: str, storage: Storage) -> tuple[FileSystem, str]:
    """Filesystem and location of one path without wildcards."""
    if remote(path):
        from pipeline.storage import data_filesystem

        return data_filesystem(path, storage)
    if path.startswith("hf://"):
        from pipeline.data import hub

        return LocalFileSystem(), hub.fetched(path)
    plain = path.removeprefix("file://")
    if "\0" in plain or not _utf8(plain):
        raise UserError(f"{ascii(path)}: holds a character that no path can have")
    # Of a user that is unknown here, os.path leaves "~name" as it stands, and pathlib raises.
    return LocalFileSystem(), os.path.abspath(os.path.expanduser(plain))  # noqa: PTH100, PTH111


def tag(path: str, storage: Storage) -> str:
    """What changes when a file's content does: the SHA-256 of a local file, the ETag of an object."""
    if not remote(path):
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    from pipeline.s3_store import S3Store
    from pipeline.storage import open_store

    store = open_store(storage.model_copy(update={"path": path}))
    assert isinstance(store, S3Store)
    return store.head(store.prefix)[1].strip('"')


def matching(path: str, storage: Storage) -> tuple[list[Found], bool]:
    """The files that a path names, and whether it is a folder. Raises UserError if there is none of that name."""
    plain, suffix = bare(path), path[len(bare(path)) :]
    plain = plain.rstrip("/") or "/"
    parts = plain.split("/")
    first = next((place for place, part in enumerate(parts) if MAGIC.search(part)), len(parts))
    base, wildcards = "/".join(parts[:first]) or ("/" if plain.startswith("/") else "."), parts[first:]
    filesystem, root = resolve(base + suffix, storage)
    if not remote(path):
        base = root

    def found(info: FileInfo) -> Found:
        address = base.rstrip("/") + info.path[len(root.rstrip("/")) :] + suffix
        return Found(address, info.size)

    # A file or folder may have wildcard characters in its own name.
    info = filesystem.get_file_info("/".join([root.rstrip("/"), *wildcards]))
    if info.type == FileType.File:
        return [found(info)], False
    if info.type == FileType.Directory and wildcards:
        base, root, wildcards = "/".join([base.rstrip("/"), *wildcards]), info.path, []
    if not wildcards:
        if info.type != FileType.Directory:
            hint = f"; for the data set of the hub write hub:{path}" if REPOSITORY.fullmatch(path) else ""
            raise UserError(f"{path}: no such file or folder{_nearby(filesystem, root)}{hint}")
        asked = [info for info in _files(filesystem, root, True) if _visible(info, root)]
        _refuse_dead(asked)
        return [found(info) for info in asked], True
    deep = len(wildcards) > 1 or "**" in wildcards
    infos = {info.path[len(root.rstrip("/")) + 1 :]: info for info in _files(filesystem, root, deep)}
    asked = [info for name, info in infos.items() if fits(name, "/".join(wildcards))]
    # What such a link has led to may as well have been a folder on the way.
    ways = ["/".join(wildcards[:count]) for count in range(1, len(wildcards))]
    _refuse_dead([*asked, *(info for name, info in infos.items() if not info.extension and any(fits(name, way) for way in ways))])
    matches = [found(info) for info in asked]
    if not matches:
        raise UserError(f"{path}: no file matches")
    return matches, False


def _files(filesystem: FileSystem, root: str, deep: bool) -> list[FileInfo]:
    """The files below a folder; links to nothing are among those of a local one, of the type NotFound."""
    if isinstance(filesystem, LocalFileSystem):
        paths = list(_below(root, deep, ()))
        alive = [path for path in paths if Path(path).exists()]
        dead = [FileInfo(path, FileType.NotFound) for path in paths if Path(path).is_symlink() and not Path(path).exists()]
        return [*(info for info in filesystem.get_file_info(alive) if info.type == FileType.File), *dead]
    selector = FileSelector(root, allow_not_found=True, recursive=deep)
    return [info for info in filesystem.get_file_info(selector) if info.type == FileType.File]


def _refuse_dead(infos: list[FileInfo]) -> None:
    dead = [info.path for info in infos if info.type == FileType.NotFound]
    if dead:
        raise UserError(*(f"{path.removeprefix(f'{Path.cwd()}/')}: is a link to nothing; mend it or delete it" for path in dead))


def _below(folder: str, deep: bool, above: tuple[str, ...]) -> Iterator[str]:
    """Paths of the files below a local folder, through links too; a link to a folder above it leads no further.

    Arrow's own listing would go round in such a link until the names are too long.
    """
    here = Path(os.path.realpath(folder))
    above = (*above, *map(str, (here, *here.parents)))
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if not _is_folder(entry):
            if not _utf8(entry.path):
                raise UserError(f"{ascii(entry.path)}: the name of this file is not UTF-8; rename it")
            yield entry.path
        elif deep and os.path.realpath(entry.path) not in above:
            yield from _below(entry.path, deep, above)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _utf8(path: str) -> bool:
    return path == path.encode(errors="replace").decode()


def _visible(info: FileInfo, root: str) -> bool:
    return not any(part[:1] in (".", "_") for part in info.path[len(root.rstrip("/")) + 1 :].split("/"))


def fits(path: str, pattern: str) -> bool:
    """Whether a relative path fits a glob; `**` stands for any depth."""
    return _matches(path.split("/"), pattern.split("/"))


def _matches(names: list[str], pattern: list[str]) -> bool:
    """Whether a relative path, in its parts, fits a glob; hidden names only where the glob spells out their mark."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    name, part = names[0], pattern[0]
    if name[:1] in (".", "_") and not part.startswith(name[0]):
        return False
    if part == "**":
        return _matches(names, pattern[1:]) or _matches(names[1:], pattern)
    return fnmatchcase(name, part) and _matches(names[1:], pattern[1:])


def _nearby(filesystem: FileSystem, root: str) -> str:
    """What lies in the folder of a missing file, for the message."""
    folder = root.rpartition("/")[0]
    try:
        infos = filesystem.get_file_info(FileSelector(folder)) if folder else []
    except (OSError, StorageError):
        return ""  # the message is right without it
    names = sorted(info.base_name for info in infos if not info.base_name.startswith("."))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"; {folder} has {', '.join(names[:5])}{more}" if names else ""
