"""Damaged files of every format end in rows or in one user error that names the file, never in anything else."""

import bz2
import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import Columns, Config, Data
from pipeline.data.inspect import inspect
from pipeline.errors import UserError


def _table() -> pa.Table:
    labels = pa.array(["x", "y", "x", "y"] * 5).dictionary_encode()
    texts = ["a", "bé", "", "long text " * 20] * 5
    return pa.table({"text": texts, "label": labels, "other": pa.array([[1], None, [], [2]] * 5)})


def _parquet() -> bytes:
    target = io.BytesIO()
    pq.write_table(_table(), target, row_group_size=7)
    return target.getvalue()


def _arrow(with_footer: bool) -> bytes:
    target, table = io.BytesIO(), _table()
    with (pa.ipc.new_file if with_footer else pa.ipc.new_stream)(target, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return target.getvalue()


CSV = 'text,label\n"a ""quoted""\r\ntext",b\nc,d\nä,b\n'.encode()
JSONL = b'{"text": "a", "label": 1}\n{"text": "\\u00e4", "label": 2.0, "other": {"x": [1]}}\n'
VALID = {
    "a.csv": CSV, "a.csv.gz": gzip.compress(CSV), "a.csv.bz2": bz2.compress(CSV),
    "a.csv.zst": pa.compress(CSV, "zstd", asbytes=True), "a.jsonl": JSONL, "a.jsonl.gz": gzip.compress(JSONL),
    "a.parquet": _parquet(), "a.arrow": _arrow(False), "a.feather": _arrow(True),
}  # fmt: skip


def read(path: Path) -> str | None:
    """What is said about a file; None if it has been read."""
    data = Data(columns=Columns(text="text", label="label"), train=str(path), validation=None)
    try:
        facts = inspect(Config(data=data))
    except UserError as error:
        problems = error.problems
    else:
        assert facts.rows["train"] > 0
        return None
    assert problems
    assert all(problem.startswith("data.train: ") and "\n" not in problem for problem in problems)
    return problems[0]


PLACE = st.floats(0, 1, exclude_max=True)
CHANGE = st.tuples(PLACE, st.sampled_from(["change", "cut", "insert", "remove"]), st.binary(min_size=1, max_size=8))


@pytest.mark.parametrize("name", VALID)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGE, min_size=1, max_size=6))
def test_a_damaged_file_ends_in_rows_or_in_a_user_error(
    name: str, tmp_path: Path, changes: list[tuple[float, str, bytes]]
) -> None:
    content = bytearray(VALID[name])
    for share, kind, more in changes:
        place = int(share * len(content))
        if kind == "change":
            content[place : place + len(more)] = more
        elif kind == "insert":
            content[place:place] = more
        elif kind == "remove":
            del content[place : place + len(more)]
        else:
            del content[place:]
    (tmp_path / name).write_bytes(content)
    read(tmp_path / name)


@pytest.mark.parametrize("name", VALID)
def test_the_files_that_are_damaged_can_be_read_when_whole(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(VALID[name])
    assert read(tmp_path / name) is None


# What longer runs than these have found


def test_a_name_of_a_column_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(_parquet().replace(b"other", b"oth\xffr"))
    assert "a.parquet: cannot be read as parquet" in (read(tmp_path / "a.parquet") or "")


def test_lengths_that_run_backwards_are_told_and_end_no_process(tmp_path: Path) -> None:
    offsets = pa.py_buffer(np.array([0, 5, 2, 9], np.int32))
    texts = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"some text"))
    table = pa.table({"text": texts, "label": ["x", "y", "x"]})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert "a.arrow: rows 1 to 3: column 'text' is damaged" in (read(tmp_path / "a.arrow") or "")
