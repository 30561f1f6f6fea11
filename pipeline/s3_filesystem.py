"""The S3 store as a pyarrow filesystem, for Ray Train's checkpoints and for reading input data.

pyarrow has an S3 filesystem of its own, which this project does not use: pickling it (as Ray does) drops its retry
strategy, it ignores AWS_ENDPOINT_URL, it can ask for no server-side encryption, and it knows no roles of profiles.
Here every request takes the one path of pipeline/s3.py, with its retries, and pickling carries settings, never keys.
"""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType

from pipeline.s3 import Settings
from pipeline.s3_parts import PartWriter
from pipeline.s3_store import S3Store

STREAM_BYTES = 8 << 20  # read ahead in a file that is read from front to back
RANDOM_BYTES = 64 << 10  # in a Parquet file, of which footer and columns are asked for by themselves


class S3Handler(FileSystemHandler):
    """Paths are `bucket/key`. Folders exist only as the common beginnings of keys, so making one does nothing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return S3Handler, (self.settings,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, S3Handler) and self.settings == other.settings

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.settings)

    def get_type_name(self) -> str:
        return "pipeline-s3"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    def get_file_info(self, paths: Sequence[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        base = selector.base_dir.strip("/")
        store, folder = self._split(base)
        found: dict[str, FileInfo] = {}
        options = {} if selector.recursive else {"Delimiter": "/"}
        there = not folder
        for page in store.pages(folder, **options):
            for entry in page.get("Contents", []):
                there = True
                path = f"{store.bucket}/{entry['Key']}"
                self._add_parents(found, base, path)
                if not path.endswith("/"):
                    found[path] = FileInfo(path, FileType.File, size=entry["Size"], mtime=entry["LastModified"])
            for entry in page.get("CommonPrefixes", []):
                there = True
                path = f"{store.bucket}/{entry['Prefix'].rstrip('/')}"
                found[path] = FileInfo(path, FileType.Directory)
        if not there and not selector.allow_not_found:
            raise FileNotFoundError(f"s3://{base}")
        return [found[path] for path in sorted(found)]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Nothing to do: a folder is there as soon as an object in it is."""

    def delete_dir(self, path: str) -> None:
        store, folder = self._split(path)
        if not folder:
            raise ValueError(f"refused to delete the bucket {path!r}")
        store.delete_folder(folder)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self.delete_dir(path)

    def delete_root_dir_contents(self) -> None:
        raise ValueError("refused to delete all buckets")

    def delete_file(self, path: str) -> None:
        store, key = self._split(path)
        store.head(key)  # raises FileNotFoundError, which a deletion on S3 does not
        store.delete_key(key)

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        with self.open_input_stream(src) as source, self.open_output_stream(dest, None) as target:
            while block := source.read(STREAM_BYTES):
                target.write(block)

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        return self._reader(path, STREAM_BYTES)

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        return self._reader(path, RANDOM_BYTES)

    def open_output_stream(self, path: str, metadata: object) -> pyarrow.NativeFile:
        store, key = self._split(path)
        return pyarrow.PythonFile(_Output(PartWriter(self.settings, store.bucket, key)), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> pyarrow.NativeFile:
        raise NotImplementedError("objects in S3 cannot be appended to")

    def _split(self, path: str) -> tuple[S3Store, str]:
        bucket, _, key = path.strip("/").partition("/")
        return S3Store(self.settings, bucket, ""), key

    def _info(self, path: str) -> FileInfo:
        store, key = self._split(path)
        if not key:
            return FileInfo(path, FileType.Directory)
        page = store.settings.call(
            f"look up s3://{path}",
            lambda: store.client.list_objects_v2(Bucket=store.bucket, Prefix=key, MaxKeys=1),
        )
        first = (page.get("Contents") or [{"Key": ""}])[0]
        if first["Key"] == key:
            return FileInfo(path, FileType.File, size=first["Size"], mtime=first["LastModified"])
        if first["Key"].startswith(key + "/"):
            return FileInfo(path, FileType.Directory)
        # Another name that begins alike came first, e.g. `run-2/x` before `run/x`.
        page = next(store.pages(key, MaxKeys=1))
        return FileInfo(path, FileType.Directory if page.get("Contents") else FileType.NotFound)

    def _reader(self, path: str, buffer: int) -> pyarrow.NativeFile:
        store, key = self._split(path)
        size, tag = store.head(key)
        raw = _Input(store, key, size, tag)
        return pyarrow.PythonFile(io.BufferedReader(raw, min(buffer, max(size, 1))), mode="r")

    def _add_parents(self, found: dict[str, FileInfo], base: str, path: str) -> None:
        parent = path.rpartition("/")[0]
        while len(parent) > len(base) and parent not in found:
            found[parent] = FileInfo(parent, FileType.Directory)
            parent = parent.rpartition("/")[0]


class _Input(io.RawIOBase):
    """Ranged reads of one object, the one that was there when it was opened."""

    def __init__(self, store: S3Store, key: str, size: int, tag: str) -> None:
        self._store, self._key, self._size, self._tag = store, key, size, tag
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, target: Any) -> int:
        stop = min(self._size, self._position + len(target))
        if stop <= self._position:
            return 0
        data = self._store.read_range(self._key, self._position, stop, self._tag)
        target[: len(data)] = data
        self._position = stop
        return len(data)


class _Output(io.RawIOBase):
    """A PartWriter as a file. Dropped without `close`, it leaves nothing: no half file looks like a whole one."""

    def __init__(self, writer: PartWriter) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return self._writer.write(memoryview(data))
        except BaseException:
            self._writer.abort()
            raise

    def close(self) -> None:
        if not self.closed:
            try:
                self._writer.close()
            finally:
                super().close()

    def __del__(self) -> None:
        self._writer.abort()
