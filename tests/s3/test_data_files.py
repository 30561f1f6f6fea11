"""Input files in a real S3 server are found and read as local ones are."""

import gzip
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
