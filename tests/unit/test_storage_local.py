"""Addresses, settings and the store in a folder; no network."""

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Storage
from pipeline.errors import StorageError, UserError
from pipeline.probe import probe
from pipeline.storage import Conflict, Store, data_filesystem, open_store

pytestmark = pytest.mark.usefixtures("no_storage_settings")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(Storage(path=str(tmp_path / "runs")))


def test_what_was_written_is_read_back_with_its_tag(store: Store) -> None:
    tag = store.write("a/b.json", b"{}")
    assert store.read_tagged("a/b.json") == (b"{}", tag)
    assert store.child("a").read("b.json") == b"{}"
    assert store.read_tagged("none") is None
    with pytest.raises(FileNotFoundError):
        store.read("none")
    assert (store.exists("a/b.json"), store.exists("a")) == (True, False)


def test_of_many_writers_that_want_a_name_exactly_one_gets_it(store: Store) -> None:
    results = race(store, lambda writer: store.write("owner", writer, if_absent=True))
    assert sorted(results.values()) == ["conflict"] * 7 + ["written"]
    assert results[store.read("owner")] == "written"


def test_of_many_writers_that_change_a_file_exactly_one_does(store: Store) -> None:
    tag = store.write("owner", b"0")
    results = race(store, lambda writer: store.write("owner", writer, if_tag=tag))
    assert sorted(results.values()) == ["conflict"] * 7 + ["written"]
    assert results[store.read("owner")] == "written"
    with pytest.raises(Conflict):
        store.write("absent", b"x", if_tag=tag)
    assert [entry.name for entry in store.list()] == ["owner"]


def race(store: Store, write) -> dict[bytes, str]:  # type: ignore[no-untyped-def]
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


def test_files_go_there_and_back_and_leave_no_temporary_ones(store: Store, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy" / "file"
    source.write_bytes(os.urandom(3_000_000))
    store.upload(source, "a/file")
    store.download("a/file", copy)
    assert copy.read_bytes() == source.read_bytes()
    assert [path.name for path in (tmp_path / "runs" / "a").iterdir()] == ["file"]
    assert [path.name for path in copy.parent.iterdir()] == ["file"]


def test_listing_and_deleting(store: Store) -> None:
    assert (store.list(), store.folders()) == ([], [])
    for name in ("run/x", "run/deep/y", "run-2/x", "top"):
        store.write(name, b"abc")
    assert [(entry.name, entry.size) for entry in store.list()] == [
        ("run-2/x", 3),
        ("run/deep/y", 3),
        ("run/x", 3),
        ("top", 3),
    ]
    assert [entry.name for entry in store.list("run")] == ["run/deep/y", "run/x"]
    assert (store.folders(), store.folders("run")) == (["run", "run-2"], ["deep"])
    store.delete("run")
    store.delete("top")
    store.delete("never-there")
    assert [entry.name for entry in store.list()] == ["run-2/x"]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../outside", "a/../../b", "a//b"])
def test_names_cannot_leave_the_store(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="not a name in a store"):
        store.write(name, b"x")


def test_trouble_with_the_folder_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = open_store(Storage(path=str(tmp_path / "file")))
    with pytest.raises(StorageError, match=r"cannot write .*/file"):
        store.write("x", b"x")
    with pytest.raises(UserError, match="step"):
        probe(Storage(path=str(tmp_path / "file")))


def test_the_probe_of_a_good_folder_leaves_nothing(tmp_path: Path) -> None:
    steps = probe(Storage(path=str(tmp_path)))
    assert [(step.name, step.warning) for step in steps] == [
        ("list", None),
        ("write", None),
        ("read", None),
        ("claim", None),
        ("delete", None),
    ]
    assert list(tmp_path.iterdir()) == []


def test_stores_and_filesystems_can_be_pickled(store: Store) -> None:
    store.write("x", b"seen")
    assert copied(store).read("x") == b"seen"
    filesystem, path = copied(data_filesystem(store.uri, Storage()))
    with filesystem.open_input_stream(f"{path}/x") as stream:
        assert stream.read() == b"seen"


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - just made here
