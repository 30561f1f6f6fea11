"""A store that hangs or dies for a while costs time, not data."""

import dataclasses
import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.s3_store import S3Store
from pipeline.storage import Store
from tests.s3.conftest import Server, is_running, wait_until


@pytest.mark.slow  # where it is stopped in an upload is a matter of luck on a busy machine
def test_an_upload_and_a_write_outlast_a_server_that_hangs(
    server: Server, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(64 << 20))
    impatient = with_timeout(store, 1)
    failures: list[BaseException] = []

    def attempt(action, *arguments) -> None:  # type: ignore[no-untyped-def]
        try:
            action(*arguments)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [
        threading.Thread(target=attempt, args=(impatient.upload, source, "big")),
        threading.Thread(target=attempt, args=(store.write, "small", b"x")),
    ]
    with caplog.at_level(logging.WARNING, "pipeline"):
        threads[0].start()
        wait_until(lambda: uploads_begun(store) == 1, "the upload has begun", 10)
        with server.paused():
            threads[1].start()
            # Not a fixed time: on a busy machine the client itself may take seconds to come to its next request.
            wait_until(lambda: "trying again" in caplog.text, "the upload is tried again", 60)
            assert threads[0].is_alive()
            assert threads[1].is_alive()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert store.read("big") == source.read_bytes()
    assert store.read("small") == b"x"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in caplog.text


def test_a_conditional_write_whose_reply_was_lost_is_known_as_our_own(server: Server, store: Store) -> None:
    with server.paused():
        writer = threading.Thread(
            target=with_timeout(store, 1).write, args=("owner", b"me"), kwargs={"if_absent": True}
        )
        writer.start()
        time.sleep(2.5)  # the first request waits in the server's socket and is carried out later
    writer.join(60)
    assert store.read("owner") == b"me"


def test_a_store_that_stays_away_is_an_error_after_the_limit(server: Server, store: Store) -> None:
    limited = with_timeout(store, 1, retry_seconds=2)
    start = time.monotonic()
    with server.paused(), pytest.raises(StorageError, match=r"cannot write .* for 2 s: endpoint unreachable"):
        limited.write("x", b"x")
    assert time.monotonic() - start < 15


def test_a_server_that_is_killed_comes_back_with_its_data(server: Server, store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(24 << 20))
    store.upload(source, "big")
    tag = store.write("small", b"x")
    killed = server.weed
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_running(killed), "the server is dead", 5)
    assert store.read_tagged("small") == (b"x", tag)  # retried until the keeper has started it again
    assert store.read("big") == source.read_bytes()
    assert server.weed != killed
    store.write("small", b"y", if_tag=tag)


def with_timeout(store: Store, seconds: float, retry_seconds: float = 60) -> S3Store:
    assert isinstance(store, S3Store)
    # A request that is still being sent is under the connection's limit.
    settings = dataclasses.replace(
        store.settings, connect_timeout=seconds, read_timeout=seconds, attempts=1, retry_seconds=retry_seconds
    )
    return S3Store(settings, store.bucket, store.prefix)


def uploads_begun(store: Store) -> int:
    assert isinstance(store, S3Store)
    reply = store.client.list_multipart_uploads(Bucket=store.bucket, Prefix=store.prefix)
    return len(reply.get("Uploads", []))
