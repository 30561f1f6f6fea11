"""A store in an S3 bucket."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

import botocore.exceptions as aws
import pyarrow.fs

from pipeline.errors import StorageError
from pipeline.s3 import Settings
from pipeline.s3_errors import MISSING, code_of, is_passing
from pipeline.s3_parts import PART_BYTES, PARTS_AT_ONCE, PartWriter
from pipeline.storage import Conflict, Entries, Entry, Names, Store, checked_name

CONDITION_FAILED = {"PreconditionFailed", "412"}
WITHOUT_REASON = {"400", "403"}


class S3Store(Store):
    """Objects in `bucket` whose keys begin with `prefix` (no slash at its end; may be empty)."""

    def __init__(self, settings: Settings, bucket: str, prefix: str) -> None:
        self.settings = settings
        self.bucket = bucket
        self.prefix = prefix
        self.uri = "/".join(filter(None, ["s3:/", bucket, prefix]))

    def child(self, *names: str) -> "S3Store":
        return S3Store(self.settings, self.bucket, "/".join(filter(None, [self.prefix, *map(checked_name, names)])))

    def read(self, name: str) -> bytes:
        found = self.read_tagged(name)
        if found is None:
            raise FileNotFoundError(f"{self.uri}/{name}")
        return found[0]

    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        def request() -> tuple[bytes, str]:
            # The body belongs to the request: its connection can break too.
            reply = self.client.get_object(Bucket=self.bucket, Key=self.key(name))
            return reply["Body"].read(), reply["ETag"]

        try:
            return self.settings.call(f"read {self.uri}/{name}", request)
        except aws.ClientError as error:
            if code_of(error) in MISSING:
                return None
            raise

    def write(self, name: str, data: bytes, *, if_absent: bool = False, if_tag: str | None = None) -> str:
        condition = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": if_tag} if if_tag is not None else {}
        unsure = False

        def request() -> str:
            nonlocal unsure
            try:
                reply = self.client.put_object(
                    Bucket=self.bucket, Key=self.key(name), Body=data, **condition, **dict(self.settings.put_options)
                )
            except Exception as error:
                # The SDK repeats as well, so that even a first error of ours may follow a write that was done.
                unsure = unsure or is_passing(error) or _repeated(error)
                raise
            return str(reply["ETag"])

        try:
            return self.settings.call(f"write {self.uri}/{name}", request)
        except aws.ClientError as error:
            if code_of(error) not in CONDITION_FAILED | MISSING:
                raise
            found = self.read_tagged(name) if unsure else None
            if found is not None and found[0] == data:
                return found[1]
            raise Conflict(f"{self.uri}/{name} was written by another process ({code_of(error)})") from None

    def upload(self, local: Path, name: str) -> None:
        with local.open("rb") as source, PartWriter(self.settings, self.bucket, self.key(name)) as target:
            while block := source.read(PART_BYTES):
                target.write(block)

    def download(self, name: str, local: Path) -> None:
        size, tag = self.head(self.key(name))
        local.parent.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=".partial-", dir=local.parent)
        temporary = Path(path)
        try:

            def fetch(start: int) -> None:
                rest = memoryview(self.read_range(self.key(name), start, min(size, start + PART_BYTES), tag))
                while rest:  # the disk that is full takes a part of it, and says so only of the next
                    written = os.pwrite(handle, rest, start)
                    rest, start = rest[written:], start + written

            try:
                with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                    try:
                        for _ in pool.map(fetch, range(0, size, PART_BYTES)):
                            pass
                    except BaseException:
                        pool.shutdown(cancel_futures=True)
                        raise
            finally:
                os.close(handle)
            temporary.chmod(0o644)
            temporary.replace(local)
        finally:
            temporary.unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Entries:
        cut = len(self.prefix) + 1 if self.prefix else 0
        folder = self.key(prefix) if prefix else self.prefix
        return [
            Entry(found["Key"][cut:], found["Size"], found["ETag"], found["LastModified"].astimezone(UTC))
            for page in self.pages(folder)
            for found in page.get("Contents", [])
            if not found["Key"].endswith("/")  # empty objects by which some tools mark folders
        ]

    def folders(self, prefix: str = "") -> Names:
        folder = self.key(prefix) if prefix else self.prefix
        return sorted(
            found["Prefix"].rstrip("/").rpartition("/")[2]
            for page in self.pages(folder, Delimiter="/")
            for found in page.get("CommonPrefixes", [])
        )

    def exists(self, name: str) -> bool:
        try:
            self.head(self.key(name))
        except FileNotFoundError:
            return False
        return True

    def delete(self, prefix: str) -> None:
        self.delete_key(self.key(prefix))
        self.delete_folder(self.key(prefix))

    def filesystem(self) -> tuple[pyarrow.fs.FileSystem, str]:
        from pipeline.s3_filesystem import S3Handler

        return pyarrow.fs.PyFileSystem(S3Handler(self.settings)), "/".join(filter(None, [self.bucket, self.prefix]))

    # What the filesystem needs too: whole keys instead of names.

    @property
    def client(self) -> Any:
        return self.settings.client()

    def key(self, name: str) -> str:
        return "/".join(filter(None, [self.prefix, checked_name(name)]))

    def head(self, key: str) -> tuple[int, str]:
        """Size in bytes and tag of an object. Raises FileNotFoundError."""
        try:
            reply = self.settings.call(
                f"look up s3://{self.bucket}/{key}", lambda: self.client.head_object(Bucket=self.bucket, Key=key)
            )
        except aws.ClientError as error:
            if code_of(error) in MISSING:
                raise FileNotFoundError(f"s3://{self.bucket}/{key}") from None
            raise
        except StorageError as error:
            if code_of(error.__cause__) in WITHOUT_REASON:
                self._reason(key)
            raise
        return reply["ContentLength"], reply["ETag"]

    def _reason(self, key: str) -> None:
        """Ask for a byte, as answers to HEAD have no body that says why. Raises StorageError if that is refused too."""
        request = partial(self.client.get_object, Bucket=self.bucket, Key=key, Range="bytes=0-0")
        with suppress(aws.ClientError):
            self.settings.call(f"look up s3://{self.bucket}/{key}", request)["Body"].close()

    def read_range(self, key: str, start: int, stop: int, tag: str) -> bytes:
        """Bytes start..stop-1 of the object that has this tag; StorageError if it was replaced meanwhile."""

        def request() -> bytes:
            reply = self.client.get_object(Bucket=self.bucket, Key=key, Range=f"bytes={start}-{stop - 1}", IfMatch=tag)
            data: bytes = reply["Body"].read()
            if len(data) != stop - start:
                raise ConnectionError(f"{len(data)} bytes came instead of {stop - start}")
            return data

        try:
            return self.settings.call(f"read s3://{self.bucket}/{key}", request)
        except aws.ClientError as error:
            if code_of(error) in MISSING:
                raise FileNotFoundError(f"s3://{self.bucket}/{key}") from None
            raise StorageError(f"storage: s3://{self.bucket}/{key} was changed while it was read") from error

    def pages(self, folder: str, **options: Any) -> Iterator[dict[str, Any]]:
        """Pages of a listing of everything under a folder (its key without slash; empty: the bucket)."""
        token: dict[str, str] = {}
        while True:
            request = partial(
                self.client.list_objects_v2,
                Bucket=self.bucket,
                Prefix=f"{folder}/" if folder else "",
                **token,
                **options,
            )
            page: dict[str, Any] = self.settings.call(f"list s3://{self.bucket}/{folder}", request)
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete_key(self, key: str) -> None:
        self.settings.call(
            f"delete s3://{self.bucket}/{key}", lambda: self.client.delete_object(Bucket=self.bucket, Key=key)
        )

    def delete_folder(self, folder: str) -> None:
        """Delete everything under a folder, 1,000 objects a request."""
        for page in list(self.pages(folder)):
            keys = [{"Key": found["Key"]} for found in page.get("Contents", [])]
            if not keys:
                continue
            request = partial(self.client.delete_objects, Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
            reply = self.settings.call(f"delete s3://{self.bucket}/{folder}", request)
            refused = [error for error in reply.get("Errors", []) if error.get("Code") not in MISSING]
            if refused:
                first = refused[0]
                raise StorageError(
                    f"storage: cannot delete {len(refused)} objects, the first s3://{self.bucket}/{first.get('Key')}: "
                    f"{first.get('Code')} {first.get('Message', '')}"
                )


def _repeated(error: BaseException) -> bool:
    return isinstance(error, aws.ClientError) and error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0) > 0
