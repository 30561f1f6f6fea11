"""The filesystem that Ray gets: the same server, the same settings, no secrets inside."""

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from pipeline.storage import Store, data_filesystem


def test_a_checkpoint_folder_goes_there_and_back(store: Store, tmp_path: Path) -> None:
    # What Ray Train does with a checkpoint: make a folder, copy files into it, list it, copy it back, delete it.
    files = {"model.safetensors": os.urandom((20 << 20) + 3), "rank-0/state.json": b"{}", "empty": b""}
    for name, data in files.items():
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_bytes(data)
    filesystem, root = store.filesystem()
    filesystem.create_dir(f"{root}/checkpoint")
    pyarrow.fs.copy_files(
        str(tmp_path / "here"), f"{root}/checkpoint", destination_filesystem=filesystem, chunk_size=64 << 20
    )
    assert {entry.name: entry.size for entry in store.list()} == {
        f"checkpoint/{name}": len(data) for name, data in files.items()
    }
    pyarrow.fs.copy_files(f"{root}/checkpoint", str(tmp_path / "there"), source_filesystem=filesystem)
    assert {
        path.relative_to(tmp_path / "there").as_posix(): path.read_bytes()
        for path in (tmp_path / "there").rglob("*")
        if path.is_file()
    } == files
    filesystem.delete_dir(f"{root}/checkpoint")
    assert store.list() == []


def test_files_and_folders_are_told_apart(store: Store) -> None:
    for name in ("run-2/x", "run/deep/file", "run.txt"):
        store.write(name, b"abc")
    filesystem, root = store.filesystem()
    kinds = {
        info.path.removeprefix(root + "/"): (info.type.name, info.size)
        for info in filesystem.get_file_info([f"{root}/{name}" for name in ("run", "run.txt", "ru", "run/deep/file")])
    }
    assert kinds == {
        "run": ("Directory", None),
        "run.txt": ("File", 3),
        "ru": ("NotFound", None),
        "run/deep/file": ("File", 3),
    }
    flat = filesystem.get_file_info(pyarrow.fs.FileSelector(root))
    assert [info.base_name for info in flat] == ["run", "run-2", "run.txt"]
    deep = filesystem.get_file_info(pyarrow.fs.FileSelector(root, recursive=True))
    assert [info.path.removeprefix(root + "/") for info in deep] == [
        "run",
        "run-2",
        "run-2/x",
        "run.txt",
        "run/deep",
        "run/deep/file",
    ]
    assert filesystem.get_file_info(pyarrow.fs.FileSelector(f"{root}/none", allow_not_found=True)) == []
    with pytest.raises(FileNotFoundError):
        filesystem.get_file_info(pyarrow.fs.FileSelector(f"{root}/none"))
    with pytest.raises(FileNotFoundError):
        filesystem.open_input_file(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        filesystem.delete_file(f"{root}/none")


def test_input_data_is_read_by_its_address(server, store: Store) -> None:  # type: ignore[no-untyped-def]
    table = pa.table(
        {"text": [f"row {number}" for number in range(5000)], "label": [number % 7 for number in range(5000)]}
    )
    filesystem, root = store.filesystem()
    pq.write_table(table, f"{root}/rows.parquet", filesystem=filesystem, row_group_size=500)
    store.write("rows.csv", b"text,label\nhello,1\n")
    found, path = data_filesystem(f"{store.uri}/rows.parquet", server.storage)
    assert pq.read_table(path, filesystem=found).equals(table)
    assert pq.read_table(path, filesystem=found, columns=["label"]).equals(table.select(["label"]))
    found, path = data_filesystem(f"{store.uri}/rows.csv", server.storage)
    with found.open_input_stream(path) as stream:
        assert pyarrow.csv.read_csv(stream).to_pylist() == [{"text": "hello", "label": 1}]


def test_pickling_carries_settings_and_no_secret(store: Store) -> None:
    store.write("x", b"seen")
    filesystem, root = store.filesystem()
    data = pickle.dumps(filesystem)
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in data
    assert os.environ["AWS_ACCESS_KEY_ID"].encode() not in data
    copy = pickle.loads(data)  # noqa: S301 - made two lines above
    assert copy == filesystem
    assert copy.handler.settings.retry_seconds == 60
    with copy.open_input_stream(f"{root}/x") as stream:
        assert stream.read() == b"seen"


def test_a_stream_that_is_dropped_leaves_no_half_file(store: Store) -> None:
    filesystem, root = store.filesystem()
    stream = filesystem.open_output_stream(f"{root}/half")
    stream.write(os.urandom(20 << 20))
    del stream
    assert store.list() == []


def test_an_object_replaced_while_it_is_read_is_an_error_not_a_mixture(store: Store) -> None:
    store.write("x", b"a" * 1_000_000)
    filesystem, root = store.filesystem()
    with filesystem.open_input_file(f"{root}/x") as file:
        assert file.read(10) == b"a" * 10
        store.write("x", b"b" * 1_000_000)
        file.seek(900_000)
        with pytest.raises(Exception, match="was changed while it was read"):
            file.read(10)


def test_ray_data_keeps_the_filesystem_it_is_given(store: Store) -> None:
    from ray.data.datasource.path_util import _resolve_paths_and_filesystem

    filesystem, root = store.filesystem()
    paths, found = _resolve_paths_and_filesystem(f"{root}/rows.csv", filesystem)
    assert paths == [f"{root}/rows.csv"]
    assert found is filesystem
