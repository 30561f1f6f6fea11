"""Which files an address, a glob or a folder stands for."""

import json
from pathlib import Path

import pyarrow.fs
import pytest

from pipeline.config import Data, Storage
from pipeline.data import files
from pipeline.errors import UserError
from tests.unit.conftest import Write
from tests.unit.reading import STORAGE, data, problem, rows

ROOT = Path(__file__).resolve().parents[2]


# Finding


def names(found: list[files.DataFile], root: Path) -> list[str]:
    return [str(Path(file.path).relative_to(root)) for file in found]


@pytest.fixture
def tree(write: Write, tmp_path: Path) -> Path:
    for name in (
        "b.csv", "a.csv", "sub/c.jsonl", "sub/deep/d.parquet", "README.md", "_SUCCESS", ".hidden.csv",
        "_temporary/e.csv", "sub/.git/f.csv", "x[1].csv",
    ):  # fmt: skip
        write(name, "text,label\n")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["a.csv", "b.csv", "sub/c.jsonl", "sub/deep/d.parquet", "x[1].csv"]),
        ("/", ["a.csv", "b.csv", "sub/c.jsonl", "sub/deep/d.parquet", "x[1].csv"]),
        ("/b.csv", ["b.csv"]),
        ("/*.csv", ["a.csv", "b.csv", "x[1].csv"]),
        ("/?.csv", ["a.csv", "b.csv"]),
        ("/[a]*.csv", ["a.csv"]),
        ("/x[1].csv", ["x[1].csv"]),
        ("/*/*.jsonl", ["sub/c.jsonl"]),
        ("/**/*.parquet", ["sub/deep/d.parquet"]),
        ("/**/*.csv", ["a.csv", "b.csv", "x[1].csv"]),
        ("/sub/**/d.*", ["sub/deep/d.parquet"]),
        ("/.hid*.csv", [".hidden.csv"]),
        ("/_temp*/*.csv", ["_temporary/e.csv"]),
    ],
)
def test_paths_globs_and_folders_are_found_in_order(tree: Path, pattern: str, expected: list[str]) -> None:
    assert names(files.find(str(tree) + pattern, data(), STORAGE), tree) == expected


def test_lists_and_file_addresses_find_each_file_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    found = files.find(["sub", "b.csv", "./*.csv", f"file://{tree}/a.csv"], data(), STORAGE)
    assert names(found, tree) == ["a.csv", "b.csv", "sub/c.jsonl", "sub/deep/d.parquet", "x[1].csv"]
    assert [file.name for file in found][:2] == ["a.csv", "b.csv"]


def test_size_and_content_hash_are_recorded(write: Write) -> None:
    (file,) = files.find(str(write("a.tsv", b"abc")), data(), STORAGE)
    assert (file.size, file.format) == (3, "csv")
    assert file.tag == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_given_format_reads_files_without_a_suffix(write: Write, tmp_path: Path) -> None:
    write("part-0", "text,label\na,b\n")
    write("_SUCCESS", "")
    assert rows(tmp_path, format="csv") == [("a", "b")]
    assert "no data files in this folder, found part-0" in problem(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("/nix.csv", "no such file or folder"),
        ("/nix*.csv", "no file matches"),
        ("/README.md", "unknown suffix; give data.format, or one of .csv"),
        ("/_temporary/*", None),
    ],
)
def test_nothing_found_is_refused_naming_the_field(tree: Path, pattern: str, words: str | None) -> None:
    if words is None:
        assert names(files.find(str(tree) + pattern, data(), STORAGE), tree) == ["_temporary/e.csv"]
        return
    with pytest.raises(UserError, match=r"data\.validation: ") as caught:
        files.find(str(tree) + pattern, data(), STORAGE, "data.validation")
    assert words in str(caught.value)


def test_all_paths_that_find_nothing_are_reported_together(tree: Path) -> None:
    with pytest.raises(UserError) as caught:
        files.find([f"{tree}/nix.csv", f"{tree}/*.pq", "gs://bucket/a.csv"], data(), STORAGE)
    assert len(caught.value.problems) == 3
    assert "the scheme 'gs' is not supported" in caught.value.problems[2]


def test_objects_are_found_and_read_by_the_same_rules(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "b.csv").write_text("text,label\na,b\n")

    def filesystem(uri: str, storage: Storage) -> tuple[pyarrow.fs.FileSystem, str]:
        path = uri.removeprefix("s3://").split("?")[0].rstrip("/")
        return pyarrow.fs.SubTreeFileSystem(str(tree.parent), pyarrow.fs.LocalFileSystem()), path

    monkeypatch.setattr("pipeline.storage.data_filesystem", filesystem)
    monkeypatch.setattr("pipeline.data.listing.tag", lambda path, storage: "etag")
    bucket = f"s3://{tree.name}"
    for address, expected in [
        (f"{bucket}/*.csv", ["a.csv", "b.csv", "x[1].csv"]),
        (f"{bucket}/?.csv", ["a.csv", "b.csv"]),
        (f"{bucket}/sub/", ["sub/c.jsonl", "sub/deep/d.parquet"]),
        (f"{bucket}/b.csv", ["b.csv"]),
    ]:
        assert [file.path for file in files.find(address, data(), STORAGE)] == [f"{bucket}/{name}" for name in expected]
    query = "?scheme=http&endpoint_override=localhost:1"
    (file,) = files.find(f"{bucket}/b*.csv{query}", data(), STORAGE)
    assert file.path == f"{bucket}/b.csv{query}"
    assert json.loads(json.dumps(next(files.read(file, ["text"], data(), STORAGE)).to_pylist())) == [{"text": "a"}]


def test_a_link_to_a_folder_above_leads_no_further(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv").write_text("text,category\nx,a\n")
    (tmp_path / "sub" / "up").symlink_to("..")
    (tmp_path / "sub" / "self").symlink_to(".")
    (tmp_path / "sub" / "over").symlink_to("../..")
    for folder in (tmp_path, tmp_path / "sub"):
        found = files.find(str(folder), Data(), Storage())
        assert [file.path for file in found] == [f"{tmp_path}/sub/a.csv"]


def test_a_link_to_nothing_is_refused_where_it_is_asked_for(tree: Path) -> None:
    (tree / "part-1.csv").symlink_to("gone.csv")
    (tree / "sub" / "loop.csv").symlink_to("loop.csv")
    (tree / "shards").symlink_to("nowhere")
    for asked in ("", "/part-*.csv"):
        with pytest.raises(UserError, match=r"part-1\.csv: is a link to nothing"):
            files.find(str(tree) + asked, data(), STORAGE)
    with pytest.raises(UserError, match=r"loop\.csv: is a link to nothing"):
        files.find(f"{tree}/sub", data(), STORAGE)
    with pytest.raises(UserError, match="shards: is a link to nothing"):
        files.find(f"{tree}/*/*.jsonl", data(), STORAGE)
    assert names(files.find(f"{tree}/?.csv", data(), STORAGE), tree) == ["a.csv", "b.csv"]
    assert names(files.find(f"{tree}/sub/*.jsonl", data(), STORAGE), tree) == ["sub/c.jsonl"]


def test_a_file_and_a_link_to_it_are_read_once(tree: Path) -> None:
    (tree / "0.csv").symlink_to("a.csv")
    assert names(files.find(f"{tree}/?.csv", data(), STORAGE), tree) == ["a.csv", "b.csv"]
    assert names(files.find(f"{tree}/0.csv", data(), STORAGE), tree) == ["0.csv"]


def test_a_folder_may_have_wildcard_characters_in_its_name(write: Write, tmp_path: Path) -> None:
    for name in ("run[1]/a.csv", "run1/b.csv", "what?/sub/c.csv"):
        write(name, "text,label\n")
    for given, expected in (("run[1]", "run[1]/a.csv"), ("run[1]/", "run[1]/a.csv"), ("what?", "what?/sub/c.csv")):
        assert names(files.find(f"{tmp_path}/{given}", data(), STORAGE), tmp_path) == [expected]
        assert names(files.find(given, data(), STORAGE), tmp_path) == [expected]
