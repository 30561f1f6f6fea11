"""Columns of types that few programs write."""

import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config import Task
from pipeline.data.inspect import inspect
from tests.unit.tables import config, ids, problems

D = decimal.Decimal


def arrow(table: pa.Table) -> None:
    with pa.ipc.new_stream("train.arrow", table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("labels", "task", "counts", "targets"),
    [
        (pa.array([D(2), D(1), D(2)], pa.decimal32(5, 0)), "text-classification", {"1": 1, "2": 2}, [1, 0, 1]),
        (pa.array([D(2), D(1), D(2)], pa.decimal64(9, 0)), "text-classification", {"1": 1, "2": 2}, [1, 0, 1]),
        (pa.array([D("0.5"), D(1), D(2)], pa.decimal32(5, 1)), "regression", None, [0.5, 1, 2]),
        (
            pa.array([[D(2), D(1)], [], [D(2)]], pa.large_list(pa.decimal32(5, 0))),
            "multi-label", {"1": 1, "2": 2}, [[1, 1], [0, 0], [0, 1]],
        ),
        (
            pa.array([["b", "a"], [], ["b"]], pa.list_view(pa.string())),
            "multi-label", {"a": 1, "b": 2}, [[1, 1], [0, 0], [0, 1]],
        ),
        (
            # Views may overlap, and lie in any order.
            pa.LargeListViewArray.from_arrays([1, 0, 2], [2, 1, 0], pa.array(["a", "b", "c"], pa.string_view())),
            "multi-label", {"a": 1, "b": 1, "c": 1}, [[0, 1, 1], [1, 0, 0], [0, 0, 0]],
        ),
    ],
    ids=["decimal32", "decimal64", "fraction", "list_decimal32", "list_view", "large_list_view"],
)  # fmt: skip
def test_labels_of_rare_types_become_the_same_numbers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    labels: pa.Array,
    task: Task,
    counts: dict[str, int] | None,
    targets: list[Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    arrow(pa.table({"text": ["a", "b", "c"], "label": labels}))
    facts = inspect(config(task))
    assert facts.label_counts.get("train") == counts
    assert ids(config(task), facts) == targets


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**62], pa.timestamp("s")), pa.array([1], pa.timestamp("us", "Mars/Olympus")),
        pa.array([2**31 - 1], pa.date32()), pa.array([2**62], pa.duration("s")),
        pa.array([[2**31 - 1]], pa.list_(pa.date32())),
    ],
    ids=["timestamp", "zone", "date", "duration", "list"],
)  # fmt: skip
def test_times_that_python_cannot_hold_are_refused_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: pa.Array
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, label in ((values, pa.array(["a"])), (pa.array(["x"]), values)):
        arrow(pa.table({"text": text, "label": label}))
        found = problems(config())[0]
        assert "train.arrow row 1: " in found
        assert "(cannot be shown); " in found
