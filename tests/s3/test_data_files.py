"""Input files in a real S3 server are found and read as local ones are."""

import bz2
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import Columns, Config, Data
from pipeline.data.files import find, read
from pipeline.data.inspect import inspect
from pipeline.errors import UserError
from pipeline.storage import Store

from .conftest import Server

DATA = Data(columns=Columns(label="label"))


@pytest.fixture
def address(server: Server, store: Store, tmp_path: Path) -> str:
    """Four files of two rows each, and things beside them that are no data."""
    pq.write_table(pa.table({"text": ["e", "f"], "label": ["x", "y"]}), tmp_path / "c.parquet")
    for name, content in {
        "a.csv": b"text,label\na,x\n\xc3\xa4,y\n",
        "b.csv.gz": gzip.compress(b"text,label\nc,x\nd,y\n"),
        "deep/er/c.parquet": (tmp_path / "c.parquet").read_bytes(),
        "deep/d.jsonl": b'{"text": "g", "label": "x"}\n{"text": "h", "label": "y"}\n',
        "_SUCCESS": b"",
        "README.md": b"what it is",
        "empty/.keep": b"",
    }.items():
        store.write(name, content)
    return store.uri


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["a.csv", "b.csv.gz", "deep/d.jsonl", "deep/er/c.parquet"]),
        ("/", ["a.csv", "b.csv.gz", "deep/d.jsonl", "deep/er/c.parquet"]),
        ("/a.csv", ["a.csv"]),
        ("/*.csv*", ["a.csv", "b.csv.gz"]),
        ("/?.csv", ["a.csv"]),
        ("/**/*.parquet", ["deep/er/c.parquet"]),
        ("/deep", ["deep/d.jsonl", "deep/er/c.parquet"]),
    ],
)
def test_paths_globs_and_folders(server: Server, address: str, pattern: str, names: list[str]) -> None:
    found = find(address + pattern, DATA, server.storage)
    assert [file.path for file in found] == [f"{address}/{name}" for name in names]


def test_rows_and_tags(server: Server, store: Store, address: str) -> None:
    found = find(address, DATA, server.storage)
    rows = [row for file in found for t in read(file, ["text"], DATA, server.storage) for row in t["text"].to_pylist()]
    assert rows == ["a", "ä", "c", "d", "g", "h", "e", "f"]
    tags = {entry.name: entry.tag.strip('"') for entry in store.list()}
    assert [file.tag for file in found] == [tags[file.path.removeprefix(f"{address}/")] for file in found]
    assert found[0].size == 20


def test_inspect_counts_them(server: Server, address: str) -> None:
    data = DATA.model_copy(update={"train": address, "validation": f"{address}/a.csv"})
    facts = inspect(Config(data=data, storage=server.storage))
    assert facts.rows == {"train": 8, "validation": 2}
    assert facts.labels == ["x", "y"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{}/nix.csv", "no such file or folder; "),
        ("{}/*.tsv", "no file matches"),
        ("{}/empty", "no data files in this folder"),
        ("{}/nix/*.csv", "no file matches"),
        ("s3://no-such-bucket/a.csv", "no-such-bucket"),
        ("s3://B/a.csv", "a bucket name has 3 to 63 letters"),
    ],
)
def test_what_is_not_there_is_refused_naming_the_field(server: Server, address: str, path: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        find(path.format(address), DATA, server.storage, "data.validation")
    (problem,) = caught.value.problems
    assert problem.startswith("data.validation: ")
    assert words in problem


@pytest.mark.parametrize("path", ["{}/a.csv", "{}/*.csv", "{}"])
def test_forbidden_files_are_refused_naming_the_field(
    server: Server, address: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UserError) as caught:
        find(path.format(address), DATA, server.storage)
    (problem,) = caught.value.problems
    assert problem.startswith("data.train: ")
    assert "SignatureDoesNotMatch" in problem or "forbidden" in problem.lower()


def test_every_format_reads_the_same_from_the_store(server: Server, store: Store, tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = [{"text": "a", "label": "x"}, {"text": "\u00e4\nb", "label": "y"}]
    as_csv = 'text,label\na,x\n"\u00e4\nb",y\n'.encode()
    as_jsonl = "".join(json.dumps(row) + "\n" for row in rows).encode()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    DatasetDict({"train": Dataset.from_list(rows), "test": Dataset.from_list(rows[:1])}).save_to_disk(
        str(tmp_path / "saved"), num_shards={"train": 2, "test": 1}
    )
    (tmp_path / "saved" / "train" / "cache-0123.arrow").write_bytes(b"left over")
    for file in (tmp_path / "saved").rglob("*.*"):
        store.write(f"saved/{file.relative_to(tmp_path / 'saved')}", file.read_bytes())
    for name, content in {
        "a.csv": as_csv, "a.csv.gz": gzip.compress(as_csv), "a.csv.bz2": bz2.compress(as_csv),
        "a.csv.zst": pa.compress(as_csv, "zstd", asbytes=True), "a.jsonl": as_jsonl,
        "a.jsonl.gz": gzip.compress(as_jsonl), "a.jsonl.zst": pa.compress(as_jsonl, "zstd", asbytes=True),
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
    }.items():  # fmt: skip
        store.write(name, content)
    names = [entry.name for entry in store.list() if "/" not in entry.name]
    assert len(names) == 8
    for name in [*names, "saved", "saved/", "saved/train"]:
        data = DATA.model_copy(update={"train": f"{store.uri}/{name}", "validation": None})
        facts = inspect(Config(data=data, storage=server.storage))
        tables = [t for f in facts.files["train"] for t in read(f, ["text", "label"], data, server.storage)]
        assert [row for table in tables for row in table.to_pylist()] == rows, name
        assert facts.label_counts == {"train": {"x": 1, "y": 1}}
    (only,) = find(f"{store.uri}/saved", DATA, server.storage, "data.test")
    assert only.path.endswith("saved/test/data-00000-of-00001.arrow")
