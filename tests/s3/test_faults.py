"""Connections that break, a store that is busy or away, objects cut behind our back: no such checkpoint counts."""

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import checkpoint
from pipeline.errors import RunError, StorageError
from pipeline.retention import prune
from pipeline.s3_store import S3Store
from pipeline.storage import Conflict, Store, open_store
from tests.s3.checkpoints import BIG, loaded, save, steps
from tests.s3.conftest import Server
from tests.s3.proxy import Proxy, answers, cut_answer, cut_request, lose_answer, proxy_before

UPLOAD_PART, COMPLETE = "partNumber=", "[?]uploadId="


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxy_before(server.storage) as running:
        yield running


@pytest.fixture
def run(proxy: Proxy, store: Store) -> S3Store:
    """The place of `store`, reached through the proxy, by one request each time so that all repetitions are ours."""
    assert isinstance(store, S3Store)
    through = open_store(proxy.storage.model_copy(update={"path": store.uri}), retry_seconds=60)
    assert isinstance(through, S3Store)
    return with_limit(through, 60)


def with_limit(store: S3Store, seconds: float) -> S3Store:
    settings = dataclasses.replace(store.settings, attempts=1, retry_seconds=seconds)
    return S3Store(settings, store.bucket, store.prefix)


@pytest.mark.parametrize(
    ("act", "method", "path"),
    [
        (cut_request, "PUT", "partNumber=2"),
        (lose_answer, "PUT", "partNumber=1"),
        (answers(503, "SlowDown"), "PUT", UPLOAD_PART),
        (answers(500, "InternalError"), "POST", "[?]uploads"),
        (answers(503, "ServiceUnavailable"), "POST", COMPLETE),
        (answers(200, "InternalError"), "POST", COMPLETE),
        (lose_answer, "POST", COMPLETE),
        (cut_request, "PUT", "config.json"),
        (lose_answer, "PUT", "manifest.json"),
    ],
    ids=[
        "connection cut in a part", "answer to a part lost", "SlowDown", "cannot begin", "cannot complete",
        "error in an answer 200", "answer to the completion lost", "cut in a small file", "answer to the manifest lost",
    ],
)  # fmt: skip
def test_an_upload_that_is_disturbed_is_repeated_and_its_checkpoint_is_whole(
    proxy: Proxy, run: S3Store, store: Store, tmp_path: Path, act: object, method: str, path: str
) -> None:
    proxy.spoil(act, method, path)  # type: ignore[arg-type]
    files = save(run, tmp_path, 5, size=BIG)
    assert proxy.faults[0].times == 0
    assert steps(store) == [5]
    assert loaded(store, tmp_path, checkpoint.Name(1, 5)) == files


@pytest.mark.parametrize("act", [cut_answer, answers(503, "SlowDown")], ids=["cut", "SlowDown"])
def test_a_download_that_is_disturbed_is_repeated(
    proxy: Proxy, run: S3Store, store: Store, tmp_path: Path, act: object
) -> None:
    files = save(store_as_s3(store), tmp_path, 5, size=BIG)
    proxy.spoil(act, "GET", "model.safetensors", times=2)  # type: ignore[arg-type]
    assert loaded(run, tmp_path, checkpoint.Name(1, 5)) == files
    assert proxy.requests("GET", "model.safetensors") == 4


def store_as_s3(store: Store) -> S3Store:
    assert isinstance(store, S3Store)
    return store


def test_a_store_that_stays_busy_is_asked_a_bounded_number_of_times_and_then_named(proxy: Proxy, run: S3Store) -> None:
    proxy.spoil(answers(503, "SlowDown", "Please reduce your request rate."), times=1000)
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot write .*, for 4 s: Please reduce your request rate\. \(SlowDown\)"):
        with_limit(run, 4).write("x", b"x")
    assert time.monotonic() - began < 20
    # Pauses of 0.5, 1, 2 s and more: a store that is busy is not stormed.
    assert 2 <= proxy.requests("PUT") <= 6


def test_an_upload_cut_off_for_good_leaves_the_last_checkpoint_and_no_half_one(
    proxy: Proxy, run: S3Store, store: Store, tmp_path: Path
) -> None:
    files = save(run, tmp_path, 5, size=BIG)
    proxy.spoil(cut_request, "PUT", UPLOAD_PART, times=1000)
    with pytest.raises(StorageError, match=r"cannot write .*checkpoint-00000010-a001/model\.safetensors"):
        save(with_limit(run, 3), tmp_path, 10, size=BIG)
    assert steps(store) == [5]
    assert not store.exists("checkpoint-00000010-a001/model.safetensors")
    assert store_as_s3(store).client.list_multipart_uploads(Bucket=run.bucket, Prefix=run.prefix).get("Uploads") is None
    proxy.heal()
    # The next attempt goes on from there, and clears away what is left of the half one.
    save(run, tmp_path, 15, attempt=2)
    prune(run, 2, 5, None)
    assert {entry.name.split("/")[0] for entry in store.list()} == {
        "checkpoint-00000005-a001",
        "checkpoint-00000015-a002",
    }
    assert loaded(store, tmp_path, checkpoint.Name(1, 5)) == files


def test_a_server_that_is_gone_in_mid_upload_for_a_few_seconds_costs_only_time(
    proxy: Proxy, run: S3Store, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outage(proxy, run, store, tmp_path, 4)
    assert "trying again" in caplog.text


@pytest.mark.slow
def test_a_server_that_is_gone_for_a_minute_costs_only_time(
    proxy: Proxy, run: S3Store, store: Store, tmp_path: Path
) -> None:
    outage(proxy, with_limit(run, 200), store, tmp_path, 60)


def outage(proxy: Proxy, run: S3Store, store: Store, scratch: Path, seconds: float) -> None:
    files: list[dict[str, bytes]] = []
    upload = threading.Thread(target=lambda: files.append(save(run, scratch, 5, size=2 * BIG)))

    def leave(_: object, __: object) -> bool:
        proxy.away = True
        threading.Timer(seconds, proxy.heal).start()
        return True

    proxy.spoil(leave, "PUT", "partNumber=2")
    began = time.monotonic()
    upload.start()
    time.sleep(seconds / 2)
    assert steps(store) == []
    upload.join(seconds + 60)
    assert time.monotonic() - began > seconds
    assert steps(store) == [5]
    assert loaded(store, scratch, checkpoint.Name(1, 5)) == files[0]


@pytest.mark.parametrize("harm", ["cut", "emptied", "deleted", "manifest cut"])
def test_a_checkpoint_whose_files_were_cut_behind_our_back_is_not_listed_and_the_one_before_is_used(
    store: Store, tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = store_as_s3(store)
    files = save(run, tmp_path, 5)
    newest = save(run, tmp_path, 10)["model.safetensors"]
    name = "checkpoint-00000010-a001"
    if harm == "deleted":
        run.delete(f"{name}/model.safetensors")
    elif harm == "manifest cut":
        run.write(f"{name}/manifest.json", run.read(f"{name}/manifest.json")[:50])
    else:
        run.write(f"{name}/model.safetensors", newest[: 0 if harm == "emptied" else 700])
    with caplog.at_level(logging.WARNING, "pipeline"):
        assert steps(run) == [5]
    said = {
        "cut": "model.safetensors has 700 bytes, and was saved with 1000", "emptied": "has 0 bytes, and was saved with",
        "deleted": "model.safetensors is missing, and was saved with 1000 bytes", "manifest cut": "json is damaged",
    }  # fmt: skip
    assert said[harm].removesuffix(" bytes") in caplog.text
    assert name in caplog.text
    assert loaded(run, tmp_path, checkpoint.complete(run)[-1]) == files
    # Nothing is deleted for being damaged while its attempt lasts, and no other checkpoint goes in its place.
    prune(run, 1, 1, None)
    assert steps(run) == [5]


def test_a_checkpoint_with_the_right_sizes_and_other_bytes_is_not_loaded(store: Store, tmp_path: Path) -> None:
    run = store_as_s3(store)
    save(run, tmp_path, 5)
    run.write("checkpoint-00000005-a001/model.safetensors", os.urandom(1000))
    with pytest.raises(
        RunError, match=r"model\.safetensors: its sha256 is not that of the manifest.*delete the folder"
    ):
        loaded(run, tmp_path, checkpoint.Name(1, 5))
    assert not any("model" in path.name for path in (tmp_path / "loaded").iterdir() if path.stat().st_size != 1000)


def test_a_claim_whose_answer_was_lost_is_known_as_our_own_and_anothers_is_not(
    proxy: Proxy, run: S3Store, store: Store
) -> None:
    proxy.spoil(lose_answer, "PUT", "attempts/001")
    run.write("attempts/001.json", b"mine", if_absent=True)
    assert store.read("attempts/001.json") == b"mine"
    proxy.spoil(answers(503, "SlowDown"), "PUT", "attempts/001")
    with pytest.raises(Conflict):
        run.write("attempts/001.json", b"theirs", if_absent=True)
    assert store.read("attempts/001.json") == b"mine"
