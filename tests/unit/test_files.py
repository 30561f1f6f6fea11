"""Reading is exact: the text that was written is the text that is trained on, whatever the file looks like."""

import bz2
import csv
import gzip
import io
import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import Columns, Data, Storage
from pipeline.data import files
from pipeline.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
STORAGE = Storage()
COLUMNS = Columns(text="text", label="label")
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def data(**fields: Any) -> Data:
    return Data(columns=COLUMNS, **fields)


def rows(path: Path, columns: tuple[str, ...] = ("text", "label"), batch_rows: int = 4096, **fields: Any) -> list[Any]:
    """Rows as tuples, over all files of a path."""
    found = files.find(str(path), data(**fields), STORAGE)
    tables = [t for file in found for t in files.read(file, list(columns), data(**fields), STORAGE, batch_rows)]
    assert all(0 < len(table) <= batch_rows for table in tables)
    return [tuple(row[column] for column in columns) for table in tables for row in table.to_pylist()]


def assert_lines(error: UserError) -> None:
    """One line for each problem, each naming the file."""
    assert error.problems
    assert all("a." in line for line in error.problems)
    assert not any("\n" in line for line in error.problems)


def problem(path: Path, **fields: Any) -> str:
    with pytest.raises(UserError) as caught:
        rows(path, **fields)
    assert all("\n" not in line for line in caught.value.problems)
    return "; ".join(caught.value.problems)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def to(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to


Write = Callable[[str, str | bytes], Path]


# Banking77, the default


@pytest.mark.parametrize(("name", "count"), [("train.csv", 10003), ("test.csv", 3080)])
def test_banking77_reads_as_the_csv_module_reads_it(name: str, count: int) -> None:
    path = ROOT / "data" / "banking77" / name
    config = Data()
    (file,) = files.find(str(path), config, STORAGE)
    found = [row for t in files.read(file, ["text", "category"], config, STORAGE, 1000) for row in t.to_pylist()]
    with path.open(newline="", encoding="utf-8") as lines:
        expected = list(csv.DictReader(lines))
    assert found == expected
    assert len(found) == count
    assert any("\n" in row["text"] for row in found)


# CSV as people write it


def test_csv_keeps_texts_as_written(write: Write) -> None:
    path = write(
        "a.csv",
        '\ufefftext,label\r\n"two\r\nlines, and ""quotes""",a\r\nnull,NA\r\nNone,nan\r\n,a\r\n"",b\r\n'
        '  spaces ,a\r\n\r\n"x\u2028y\x0cz",b\r\n',
    )
    assert rows(path) == [
        ('two\r\nlines, and "quotes"', "a"),
        ("null", "NA"),
        ("None", "nan"),
        ("", "a"),
        ("", "b"),
        ("  spaces ", "a"),
        ("x\u2028y\x0cz", "b"),
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_delimiter_and_line_end_are_found(write: Write, delimiter: str, end: str) -> None:
    lines = [delimiter.join(cells) for cells in (("id", "text", "label"), ("1", "a: b", "x"), ("2", '"c,;|\td"', "y"))]
    assert rows(write("a.csv", end.join(lines))) == [("a: b", "x"), ("c,;|\td", "y")]


def test_csv_delimiter_may_be_given(write: Write) -> None:
    assert rows(write("a.csv", "text:label\na,b:c\n"), delimiter=":") == [("a,b", "c")]


def test_csv_delimiter_is_the_one_that_makes_the_configured_columns(write: Write) -> None:
    assert rows(write("a.csv", "text;label;x,y,z,w\na;b;c\n")) == [("a", "b")]


def test_csv_columns_are_strings_in_the_order_asked(write: Write) -> None:
    path = write("a.csv", "label,other,text\n1,x,2.50\n")
    (file,) = files.find(str(path), data(), STORAGE)
    (table,) = files.read(file, ["text", "label"], data(), STORAGE)
    assert table.schema == pa.schema([("text", pa.string()), ("label", pa.string())])
    assert table.to_pylist() == [{"text": "2.50", "label": "1"}]


def test_csv_long_text_is_read_whole(write: Write) -> None:
    text = "word " * 200_000
    assert rows(write("a.csv", f'text,label\n"{text}",a\n')) == [(text, "a")]


def test_latin1_is_refused_with_the_byte_position_and_read_when_configured(write: Write) -> None:
    content = "text,label\ngut,a\nschön,b\n".encode("latin-1")
    path = write("a.csv", content)
    assert f"a.csv: byte {content.index(0xF6)} (0xF6, line 3) is not utf-8" in problem(path)
    assert rows(path, encoding="latin-1") == [("gut", "a"), ("schön", "b")]


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_byte_position_holds_far_into_a_file_with_a_byte_order_mark(write: Write, offset: int) -> None:
    content = b"\xef\xbb\xbftext,label\n" + b"x" * offset + "é,a\n".encode() * 300_000 + b"\xff,b\n"
    assert f"byte {content.index(0xFF)} (0xFF, line 300002)" in problem(write("a.csv", content))


def test_utf16_is_read_when_configured(write: Write) -> None:
    path = write("a.csv", "text,label\r\nschön,b\r\n".encode("utf-16"))
    assert "byte 0 (0xFF" in problem(path)
    assert rows(path, encoding="utf-16") == [("schön", "b")]


@pytest.mark.parametrize("delimiter", ['"', "\n"])
def test_impossible_delimiter_is_refused(write: Write, delimiter: str) -> None:
    assert "data.delimiter: " in problem(write("a.csv", "text,label\na,b\n"), delimiter=delimiter)


@pytest.mark.parametrize("encoding", ["idna", "utf-7", "shift_jis", "ascii"])
def test_odd_codecs_end_in_a_user_error(write: Write, encoding: str) -> None:
    message = problem(write("a.csv", b"text,label\n\xff,b\n"), encoding=encoding)
    assert "a.csv: " in message
    assert encoding in message
    assert "data.encoding" in message


@pytest.mark.parametrize("encoding", ["klingon", "hex"])
def test_unknown_encoding_is_refused(write: Write, encoding: str) -> None:
    message = problem(write("a.csv", "text,label\na,b\n"), encoding=encoding)
    assert f"data.encoding: '{encoding}' is no known text encoding" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("text,label\na,b\n\nc\n", "row 2 (line 4) has 1 cells, the header has 2"),
        ('text,label\n"a\nb",c\nd,e,f\n', "row 2 (line 4) has 3 cells, the header has 2"),
        ('text,label\na,b\n"never closed,c\nd,e\n', "row 2 (line 3) is malformed"),
        ('text,label\n"a" b,c\n', "row 1 (line 2) is malformed"),
        ("text,kind,text\na,b,c\n", "no column 'label'; the file has 'text', 'kind', 'text'; "),
        ("text,label,text\na,b,c\n", "2 columns are named 'text'"),
    ],
)
def test_malformed_csv_is_refused_with_its_place(write: Write, content: str, words: str) -> None:
    assert "a.csv: " + words in problem(write("a.csv", content)) + "; "


def test_malformed_row_is_found_behind_many_good_ones(write: Write) -> None:
    content = "text,label\n" + "a,b\n" * 9_999 + "c\n" + "a,b\n" * 9_999
    assert "row 10000 (line 10001) has 1 cells" in problem(write("a.csv", content))


@pytest.mark.parametrize("content", ["", "\ufeff", "\n\n", "text,label\n", "text,label"])
def test_csv_without_rows_gives_none(write: Write, content: str) -> None:
    assert rows(write("a.csv", content)) == []


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.text(
    st.sampled_from("\",;|\t\r\n'\\ a\x00"), max_size=12
)


@EXAMPLES
@given(
    st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20),
    st.sampled_from(",;\t|"),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_text_survives_a_csv(tmp_path: Path, table: list[tuple[str, str]], delimiter: str, end: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "label"), *table])
    path = tmp_path / "a.csv"
    path.write_bytes(text.getvalue().encode())
    assert rows(path, batch_rows=7) == table


# JSON lines


def test_jsonl_keeps_types_as_written_and_never_mixes_them(write: Write) -> None:
    path = write(
        "a.jsonl",
        '{"text": "a", "label": 0, "more": {"x": []}}\n\n{"text": "b", "label": 1.5}\n{"label": "1", "text": "c"}\r\n'
        '{"text": null, "label": true}\n{"text": "d"}\n{"text": "e", "label": ["x", "y"]}\n{"text": "f", "label": []}',
    )
    (file,) = files.find(str(path), data(), STORAGE)
    tables = list(files.read(file, ["label"], data(), STORAGE))
    assert [table.schema.field("label").type for table in tables] == [
        pa.float64(),
        pa.string(),
        pa.bool_(),
        pa.list_(pa.string()),
    ]
    assert [table["label"].to_pylist() for table in tables] == [[0, 1.5], ["1"], [True, None], [["x", "y"], []]]


def test_jsonl_integers_stay_integers(write: Write) -> None:
    path = write("a.jsonl", '{"text": "a", "label": 9007199254740993}\n{"text": "b", "label": null}\n')
    assert rows(path) == [("a", 9007199254740993), ("b", None)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a", "label": 1}\n\n{"text": \n', "row 2 (line 3) is not JSON"),
        ("[1]\n", "row 1 (line 1) is [1]; each line must be one JSON object"),
        ('[{"text": "a",\n', "row 1 (line 1) is not JSON"),
        ('{"text": "a", "label": {"x": 1}}\n', "row 1: column 'label' has {'x': 1}"),
        ('{"text": "a", "label": ["x", 1]}\n', "row 1: column 'label' has ['x', 1]"),
        ('{"text": "a", "label": 1}\n{"text": "a", "label": 1' + "0" * 30 + "}\n", "row 2: column 'label' has 1000"),
        ('{"text": "a", "label": "\\ud800"}\n', "row 1: column 'label' has '\\ud800'"),
        ('{"texts": "a", "label": 1}\n', "no column 'text'; the file has 'texts', 'label'"),
        ("[" * 100_000, "row 1 (line 1) is not JSON"),
        ("1" * 5_000, "row 1 (line 1) is not JSON"),
    ],
)
def test_malformed_jsonl_is_refused_with_its_place(write: Write, content: str, words: str) -> None:
    assert "a.jsonl: " + words in problem(write("a.jsonl", content))


def test_jsonl_in_another_encoding_is_refused_with_the_byte_position(write: Write) -> None:
    content = '{"text": "schön", "label": 1}\n'.encode("latin-1")
    assert f"a.jsonl: byte {content.index(0xF6)} (0xF6, line 1)" in problem(write("a.jsonl", content))
    assert rows(write("b.jsonl", content), encoding="latin-1") == [("schön", 1)]


# Parquet


@pytest.mark.parametrize(
    ("labels", "expected", "kind"),
    [
        (pa.array(["b", "a"]).dictionary_encode(), ["b", "a"], pa.string()),
        (pa.array(["b", None], pa.large_string()), ["b", None], pa.string()),
        (pa.array([Decimal(1), Decimal(0)], pa.decimal128(10, 0)), [1, 0], pa.int64()),
        (pa.array([Decimal("1.00"), Decimal("0.50")], pa.decimal128(10, 2)), [1.0, 0.5], pa.float64()),
        (pa.array([1, 0], pa.int8()), [1, 0], pa.int64()),
        (pa.array([1, 0], pa.uint64()), [1, 0], pa.int64()),
        (pa.array([1, 0.5], pa.float32()), [1.0, 0.5], pa.float64()),
        (pa.array([True, False]), [True, False], pa.bool_()),
        (pa.array([["a"], []], pa.large_list(pa.large_string())), [["a"], []], pa.list_(pa.string())),
        (pa.array([[1, 0], [0, 1]], pa.list_(pa.int32(), 2)), [[1, 0], [0, 1]], pa.list_(pa.int64())),
    ],
)
def test_parquet_types_are_made_plain(tmp_path: Path, labels: pa.Array, expected: list[Any], kind: pa.DataType) -> None:
    path = tmp_path / "a.parquet"
    other = pa.array([{"x": 1}, None])
    pq.write_table(pa.table({"other": other, "label": labels, "text": ["x", "y"], "label.x": [1, 2]}), path)
    (file,) = files.find(str(path), data(), STORAGE)
    (table,) = files.read(file, ["text", "label"], data(), STORAGE)
    assert table.schema == pa.schema([("text", pa.string()), ("label", kind)])
    assert table["label"].to_pylist() == expected


def test_parquet_is_read_in_batches_over_row_groups(tmp_path: Path) -> None:
    expected = [(f"t{number}", number % 3) for number in range(1000)]
    table = pa.table({"text": [text for text, _ in expected], "label": [label for _, label in expected]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=64)
    assert rows(tmp_path / "a.parquet", batch_rows=100) == expected


def test_parquet_numbers_beyond_int64_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": pa.array([2**64 - 1], pa.uint64())}), tmp_path / "a.parquet")
    assert "a.parquet: rows 1 to 1: column 'label' of type uint64 does not fit int64" in problem(tmp_path / "a.parquet")


def test_parquet_missing_column_and_damage_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "labels": [1]}), tmp_path / "a.parquet")
    assert "a.parquet: no column 'label'; the file has 'text', 'labels'" in problem(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    assert "b.parquet: cannot be read as parquet" in problem(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"")
    assert "c.parquet: cannot be read as parquet" in problem(tmp_path / "c.parquet")


def test_empty_parquet_gives_no_rows(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.int64())}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({}), tmp_path / "b.parquet")
    assert rows(tmp_path) == []


# Every format


@EXAMPLES
@given(
    content=st.binary(max_size=200),
    suffix=st.sampled_from(["csv", "jsonl", "parquet", "arrow", "csv.gz", "jsonl.bz2", "csv.zst"]),
)
def test_any_bytes_end_in_rows_or_in_a_user_error(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    for head in (b"", b"text,label\n", b'{"text": "a", "label": 1}\n'):
        path.write_bytes(head + content)
        try:
            rows(path)
        except UserError as error:
            assert_lines(error)


def test_compressed_files_are_read_the_same(write: Write) -> None:
    text = "text,label\nä,b\n".encode()
    line = b'{"text": "c", "label": "d"}\n'
    write("a.csv.gz", gzip.compress(text))
    write("b.csv.bz2", bz2.compress(text))
    write("c.csv.zst", pa.compress(text, "zstd", asbytes=True))
    path = write("d.jsonl.gz", gzip.compress(line) + gzip.compress(line))
    assert rows(path.parent) == [("ä", "b")] * 3 + [("c", "d")] * 2
    broken = write("broken.csv.gz", gzip.compress(text * 100)[:-12])
    assert "broken.csv.gz: cannot be read as csv" in problem(broken)
    assert "unknown suffix" in problem(write("a.parquet.gz", b""))


def test_reading_does_not_hold_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + f"{'word ' * 20},a\n" * 200_000)
    (file,) = files.find(str(path), data(), STORAGE)
    before, most = pa.total_allocated_bytes(), 0
    for table in files.read(file, ["text", "label"], data(), STORAGE):
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(table) <= 4096
    assert file.size > 20_000_000
    assert most < 4_000_000


def test_what_a_reading_task_gets_can_be_pickled(write: Write) -> None:
    (file,) = files.find(str(write("a.csv", "text,label\na,b\n")), data(), STORAGE)
    again, asked = pickle.loads(pickle.dumps((file, data())))  # noqa: S301
    assert again == file
    assert next(files.read(again, ["label"], asked, STORAGE)).to_pylist() == [{"label": "b"}]


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
