"""Files read as the pipeline reads them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

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
