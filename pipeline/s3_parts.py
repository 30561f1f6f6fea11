"""Writing one S3 object of any size: in parts, several at a time, each repeated by itself when it fails."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import botocore.exceptions as aws

from pipeline.errors import StorageError
from pipeline.s3 import Settings
from pipeline.s3_errors import code_of, explain

PART_BYTES = 16 << 20  # S3 takes 5 MiB and more, and 10,000 parts
PARTS_AT_ONCE = 4  # one connection to a bucket gives some 50 to 100 MB/s


class PartWriter:
    """Writes one object of any size; it appears when `close` returns, and not at all after `abort` or an error.

    Holds up to PARTS_AT_ONCE + 1 parts in memory. What is smaller than a part goes in a single request.
    """

    def __init__(self, settings: Settings, bucket: str, key: str) -> None:
        self.settings = settings
        self.bucket = bucket
        self.key = key
        self.closed = False
        self._what = f"write s3://{bucket}/{key}"
        self._buffer = bytearray()
        self._upload_id: str | None = None
        self._parts: list[Future[dict[str, Any]]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0  # bytes of the parts

    def write(self, data: bytes | memoryview) -> int:
        """Take in more bytes. Raises StorageError, also for a part that was sent before."""
        self._buffer += data
        while len(self._buffer) >= self._part_bytes():
            size = self._part_bytes()
            part = bytes(memoryview(self._buffer)[:size])
            del self._buffer[:size]
            self._send(part)
        return len(data)

    def close(self) -> None:
        """Send the rest and make the object visible."""
        if self.closed:
            return
        self.closed = True
        call, client, place = self.settings.call, self.settings.client(), self._place()
        options = dict(self.settings.put_options)
        if self._upload_id is None:
            call(self._what, lambda: client.put_object(**place, Body=bytes(self._buffer), **options))
            return
        try:
            if self._buffer:
                self._send(bytes(self._buffer))
            parts = [part.result() for part in self._parts]
            self._complete(parts)
        except BaseException:
            self._give_up()
            raise
        finally:
            self._shut()

    def abort(self) -> None:
        """Forget the object; what was sent is deleted."""
        if not self.closed:
            self.closed = True
            self._give_up()
            self._shut()

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _place(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.key}

    def _part_bytes(self) -> int:
        """The same for the first 80 GB (R2 wants equal parts), then growing, so that 10,000 of them hold 1 TB."""
        return PART_BYTES << max(0, len(self._parts) // 1000 - 4)

    def _send(self, data: bytes) -> None:
        call, client, place = self.settings.call, self.settings.client(), self._place()
        if self._upload_id is None:
            options = dict(self.settings.put_options)
            self._upload_id = call(self._what, lambda: client.create_multipart_upload(**place, **options))["UploadId"]
            self._pool = ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="s3-part")
        assert self._pool is not None
        upload, number = self._upload_id, len(self._parts) + 1

        def send() -> dict[str, Any]:
            reply = call(self._what, lambda: client.upload_part(**place, UploadId=upload, PartNumber=number, Body=data))
            return {"PartNumber": number, "ETag": reply["ETag"]}

        running = [part for part in self._parts[-PARTS_AT_ONCE * 2 :] if not part.done()]
        if len(running) >= PARTS_AT_ONCE:
            wait(running[:1])
        for part in self._parts[-PARTS_AT_ONCE * 2 :]:
            if part.done():
                part.result()  # an error of an earlier part ends the upload now
        self._size += len(data)
        self._parts.append(self._pool.submit(send))

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        try:
            self.settings.call(
                self._what,
                lambda: self.settings.client().complete_multipart_upload(
                    **self._place(), UploadId=self._upload_id, MultipartUpload={"Parts": parts}
                ),
            )
        except aws.ClientError as error:
            # A completion whose reply got lost is repeated, and then the upload is gone, since it became the object.
            if code_of(error) != "NoSuchUpload" or self._size_there() != self._size:
                raise StorageError(f"storage: cannot {self._what}: {explain(error)}") from error

    def _size_there(self) -> int | None:
        try:
            reply = self.settings.call(self._what, lambda: self.settings.client().head_object(**self._place()))
        except aws.ClientError:
            return None
        return int(reply["ContentLength"])

    def _give_up(self) -> None:
        for part in self._parts:
            part.cancel()
        wait(self._parts)
        if self._upload_id is not None:
            try:
                self.settings.client().abort_multipart_upload(**self._place(), UploadId=self._upload_id)
            except (aws.BotoCoreError, aws.ClientError):
                return  # the store is away or refuses; a lifecycle rule of the bucket removes such leftovers

    def _shut(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
