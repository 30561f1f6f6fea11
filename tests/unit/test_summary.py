"""The tables, on a terminal of 80 columns."""

import io
from typing import Any

from rich.console import Console

from pipeline.summary import _show_first_rows, show_list


def printed(show: object, rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    show(rows, Console(file=out, width=80))  # type: ignore[operator]
    return out.getvalue()


def test_a_list_of_runs_keeps_the_time_of_its_start_in_one_piece() -> None:
    finished: dict[str, Any] = {
        "run": "banking77-with-a-long-name", "status": "finished", "steps": 2502, "epochs": 6.0, "attempts": 12,
        "best": {"eval_accuracy": 0.9036, "eval_f1": None}, "started": "2026-03-01T12:34:56+00:00",
    }  # fmt: skip
    rows = [finished, {"run": "broken", "status": "damaged", "started": ""}]
    text = printed(show_list, rows)
    assert "2026-03-01 12:34 " in text
    assert "broken" in text
    words = " ".join(text.split())
    assert "accuracy" in words
    assert "nan" in words


def test_first_rows_of_a_task_without_labels_have_no_columns_for_them() -> None:
    row = {"text": "[CLS] a text", "tokens": 5, "label": None, "target": None}
    text = printed(_show_first_rows, [row])
    assert "[CLS] a text" in text
    assert "None" not in text
    assert "label" not in text
    assert "trained as" in printed(_show_first_rows, [{**row, "label": "a", "target": 0}])
