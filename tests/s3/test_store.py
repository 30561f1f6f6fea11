"""What the store promises, against a real server."""

import hashlib
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.storage import Conflict, Store, open_store


def test_what_was_written_is_read_back_with_its_tag(store: Store) -> None:
    tag = store.write("a/result.json", b'{"loss": 0.5}')
    assert store.read("a/result.json") == b'{"loss": 0.5}'
    assert store.read_tagged("a/result.json") == (b'{"loss": 0.5}', tag)
    assert store.exists("a/result.json")
    assert store.child("a").read("result.json") == b'{"loss": 0.5}'


def test_a_missing_object_is_file_not_found(store: Store) -> None:
    with pytest.raises(FileNotFoundError, match=r"s3://pipeline/runs/test-.*/nothing"):
        store.read("nothing")
    assert store.read_tagged("nothing") is None
    assert not store.exists("nothing")
    with pytest.raises(FileNotFoundError):
        store.download("nothing", Path("/nowhere"))


@pytest.mark.parametrize(
    "name", ["with space", "plus+and&amp", "ünï/çode", "percent%20", "hash#1", "question?x=1", "a=b"]
)
def test_names_are_taken_literally(store: Store, name: str) -> None:
    store.write(name, b"x")
    assert [entry.name for entry in store.list()] == [name]
    assert store.read(name) == b"x"
    store.delete(name)
    assert store.list() == []


def test_a_listing_holds_size_tag_and_time_and_all_of_more_than_a_page(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.write(f"many/{number:04}", b"abc"), range(1005)))
    tag = store.write("other/deep/er", b"12345")
    entries = store.list()
    assert [entry.name for entry in entries] == [f"many/{number:04}" for number in range(1005)] + ["other/deep/er"]
    assert (entries[-1].size, entries[-1].tag) == (5, tag)
    assert abs(entries[-1].modified - datetime.now(UTC)) < timedelta(minutes=1)
    assert store.folders() == ["many", "other"]
    assert store.folders("other") == ["deep"]
    assert [entry.name for entry in store.list("other")] == ["other/deep/er"]
    assert [entry.name for entry in store.child("other").list()] == ["deep/er"]
    store.delete("many")
    assert [entry.name for entry in store.list()] == ["other/deep/er"]


def test_a_folder_is_no_prefix_of_a_longer_name(store: Store) -> None:
    for name in ("run", "run-2/x", "run/x", "run2"):
        store.write(name, b"x")
    assert [entry.name for entry in store.list("run")] == ["run/x"]
    store.delete("run")
    assert sorted(entry.name for entry in store.list()) == ["run-2/x", "run2"]
    store.delete("never-there")


def test_of_two_writers_that_want_a_name_exactly_one_gets_it(store: Store) -> None:
    for number in range(3):
        outcomes = race(store, lambda writer, name=f"owner-{number}": store.write(name, writer, if_absent=True))
        winner = store.read(f"owner-{number}")
        assert outcomes[winner] == "written"
        assert sorted(outcomes.values()) == ["conflict"] * 7 + ["written"]


def test_of_two_writers_that_change_an_object_exactly_one_does(store: Store) -> None:
    tag = store.write("owner", b"0")
    outcomes = race(store, lambda writer: store.write("owner", writer, if_tag=tag))
    assert outcomes[store.read("owner")] == "written"
    assert sorted(outcomes.values()) == ["conflict"] * 7 + ["written"]
    with pytest.raises(Conflict):
        store.write("owner", b"late", if_tag=tag)
    with pytest.raises(Conflict):
        store.write("never-there", b"x", if_tag=tag)


def race(store: Store, write) -> dict[bytes, str]:  # type: ignore[no-untyped-def]
    """Eight writers at once, each with bytes of its own; what became of each."""
    barrier = threading.Barrier(8)

    def one(writer: bytes) -> str:
        barrier.wait()
        try:
            write(writer)
        except Conflict:
            return "conflict"
        return "written"

    writers = [f"writer-{number}".encode() for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(writers, pool.map(one, writers), strict=True))


@pytest.mark.parametrize("size", [0, 1, (16 << 20) - 1, 16 << 20, (40 << 20) + 7])
def test_files_of_any_size_survive_upload_and_download(store: Store, tmp_path: Path, size: int) -> None:
    source, copy = tmp_path / "source", tmp_path / "new" / "copy"
    source.write_bytes(os.urandom(size))
    store.upload(source, "folder/file")
    assert store.list()[0].size == size
    store.download("folder/file", copy)
    assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(source.read_bytes()).digest()
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_a_store_crosses_to_another_process_without_its_secret(store: Store) -> None:
    store.write("x", b"seen")
    data = pickle.dumps(store)
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in data
    assert os.environ["AWS_ACCESS_KEY_ID"].encode() not in data
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read('x').decode())"
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True)
    assert done.stdout == b"seen\n"


def test_a_store_works_in_a_forked_process(store: Store) -> None:
    store.write("x", b"before")  # makes the client of this process, whose connections the child must not share
    child = os.fork()
    if child == 0:
        store.write("x", b"from the child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read("x") == b"from the child"


def test_a_bucket_that_does_not_exist_is_said_at_once_and_not_made(server) -> None:  # type: ignore[no-untyped-def]
    wrong = open_store(server.storage.model_copy(update={"path": "s3://no-such-bucket/x"}))
    with pytest.raises(StorageError, match=r"cannot write s3://no-such-bucket/x/a .*the bucket does not exist"):
        wrong.write("a", b"x")


def test_a_bucket_name_with_dots_works(server) -> None:  # type: ignore[no-untyped-def]
    dotted = open_store(server.storage.model_copy(update={"path": "s3://my.dotted.bucket/x"}))
    dotted.client.create_bucket(Bucket="my.dotted.bucket")  # type: ignore[attr-defined]
    dotted.write("a", b"x")
    assert dotted.read("a") == b"x"
