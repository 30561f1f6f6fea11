"""Reading is exact: the text that was written is the text that is trained on, whatever the file looks like."""

import bz2
import csv
import gzip
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Data
from pipeline.data import files
from pipeline.errors import UserError
from tests.unit.conftest import Write
from tests.unit.reading import EXAMPLES, STORAGE, assert_lines, data, problem, rows

ROOT = Path(__file__).resolve().parents[2]


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
