"""What one pass over the rows counts and finds wrong, table by table; `inspect` judges the whole afterwards."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import Config
from pipeline.data.columns import label_column, text_columns
from pipeline.data.files import DataFile
from pipeline.data.labels import elements, kind_of

LARGEST = float(np.finfo(np.float32).max)


@dataclass
class Ledger:
    """Problems, each said once: further rows with the same one are counted."""

    lines: dict[tuple[Any, ...], tuple[str, int]] = field(default_factory=dict)

    def note(self, key: tuple[Any, ...], line: str, rows: int = 1) -> None:
        """Note a problem of some rows; `line` is kept from the first note of a key."""
        first, count = self.lines.get(key, (line, 0))
        self.lines[key] = (first, count + rows)

    def problems(self, limit: int) -> list[str]:
        """A line each, in the order found; beyond `limit` only their number."""
        lines = [f"{line} ({count:,} such rows)" if count > 1 else line for line, count in self.lines.values()]
        return lines if len(lines) <= limit else [*lines[:limit], f"and {len(lines) - limit} more problems"]


@dataclass
class Seen:
    """A label value: in how many rows, and where first (row from 1)."""

    count: int
    file: DataFile
    row: int


@dataclass
class Split:
    """The counts of one split.

    `values` is keyed by (kind, value), the kind being `csv` where a text may stand for any type: Python holds 1, 1.0
    and True for equal. `kinds` has the first label of each kind in each file, `repeated` the first row whose list has
    a number, or a boolean, twice. `complete` tells whether all files could be read.
    """

    name: str
    files: list[DataFile]
    rows_per_file: list[int] = field(default_factory=list)
    empty_texts: int = 0
    complete: bool = True
    values: dict[tuple[str, Any], Seen] = field(default_factory=dict)
    kinds: dict[tuple[str, str], tuple[DataFile, int, Any]] = field(default_factory=dict)
    repeated: tuple[DataFile, int] | None = None

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(self.rows_per_file)


def add(split: Split, file: DataFile, before: int, table: pa.Table, config: Config, ledger: Ledger) -> None:
    """Count a table of `file`, which had `before` rows in front of it, and note what is wrong with its rows."""
    label = label_column(config)
    empty = None
    for column in text_columns(config):
        blank = _texts(split, file, before, column, _array(table[column]), ledger)
        if blank is not None:
            empty = blank if empty is None else pc.or_kleene(empty, blank)
    if empty is not None:
        split.empty_texts += pc.sum(empty).as_py() or 0
    if label is None:
        return
    labels = _array(table[label])
    task = config.model.task
    kind = kind_of(labels.type)
    place = f"data.{split.name}: {file.name} row "
    named = f"label column {label!r}"
    if labels.null_count:
        row = before + _first(pc.is_null(labels))
        ledger.note(
            ("null label", file.path), f"{place}{row}: {named} is null; each row needs a label", labels.null_count
        )
    if kind == "null" or (kind == "list of null" and task != "multi-label"):
        return
    wanted = {"regression": ["number"], "text-classification": ["string", "number", "boolean"]}.get(
        task, ["string", "list of string", "list of number", "list of boolean", "list of null"]
    )
    if file.format == "csv" and task == "regression":
        _numbers_as_text(labels, place, before, named, file, ledger)
    elif kind not in wanted:
        row = before + _first(pc.is_valid(labels))
        hint = "; lists are for model.task multi-label" if kind.startswith("list") else ""
        value = _shown_at(labels, row - before - 1)
        needed = " or ".join(wanted) if task != "multi-label" else "list of class names"
        line = f"{place}{row}: {named} has the {kind} {value}; {task} needs a {needed}{hint}"
        ledger.note(("kind", file.path, kind), line)
    elif task == "regression":
        _finite(labels.cast(pa.float64(), safe=False), place, before, named, file, ledger)
    else:
        _classes(split, file, before, labels, config, ledger)


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _shown_at(values: pa.Array, place: int) -> str:
    try:
        return shown(values[place].as_py())
    except (OverflowError, ValueError, pa.ArrowException):  # dates beyond Python's, zones that this machine lacks
        return "(cannot be shown)"


def _texts(split: Split, file: DataFile, before: int, column: str, texts: pa.Array, ledger: Ledger) -> pa.Array | None:
    """Note null and non-text values; which texts are empty, None if the column holds no texts."""
    place = f"data.{split.name}: {file.name} row "
    kind = kind_of(texts.type)
    if texts.null_count:
        row = before + _first(pc.is_null(texts))
        line = f"{place}{row}: text column {column!r} is null; give a text, or leave the row out"
        ledger.note(("null text", file.path, column), line, texts.null_count)
    if kind == "string":
        return pc.equal(texts, "")
    if kind != "null":
        row = before + _first(pc.is_valid(texts))
        value = _shown_at(texts, row - before - 1)
        line = f"{place}{row}: text column {column!r} has the {kind} {value}; a text column holds strings only"
        ledger.note(("no text", file.path, column), line, len(texts) - texts.null_count)
    return None


def _classes(split: Split, file: DataFile, before: int, labels: pa.Array, config: Config, ledger: Ledger) -> None:
    """Count the label values of a table."""
    place = f"data.{split.name}: {file.name} row "
    rows = np.arange(len(labels))
    if config.model.task == "multi-label":
        labels, rows = elements(labels, config.data)
    if labels.null_count:
        valid = labels.is_valid().to_numpy(zero_copy_only=False)
        if config.model.task == "multi-label":
            row = before + int(rows[~valid][0]) + 1
            ledger.note(("null item", file.path), f"{place}{row}: a label in the list is null; leave it out")
        labels, rows = labels.drop_null(), rows[valid]
    if len(labels) == 0:
        return
    kind = "csv" if file.format == "csv" else kind_of(labels.type)
    encoded = labels.dictionary_encode()
    indices = encoded.indices.to_numpy()
    counts = np.bincount(indices)
    if config.model.task == "multi-label":
        # A label that a row's list has twice is one label of that row.
        of_row, once = np.divmod(np.unique(rows * len(counts) + indices), len(counts))
        if len(once) < len(indices) and kind in ("number", "boolean") and split.repeated is None:
            split.repeated = (file, before + int(np.flatnonzero(np.bincount(rows) > np.bincount(of_row))[0]) + 1)
        counts = np.bincount(once)
    firsts = np.unique(indices, return_index=True)[1]
    values = encoded.dictionary.to_pylist()
    split.kinds.setdefault((file.path, kind), (file, before + int(rows[0]) + 1, values[0]))
    for value, count, first in zip(values, counts.tolist(), firsts.tolist(), strict=True):
        seen = split.values.get((kind, value))
        if seen is None:
            split.values[kind, value] = Seen(count, file, before + int(rows[first]) + 1)
        else:
            seen.count += count


def _numbers_as_text(texts: pa.Array, place: str, before: int, named: str, file: DataFile, ledger: Ledger) -> None:
    try:
        _finite(texts.cast(pa.float64()), place, before, named, file, ledger)
    except pa.ArrowInvalid:
        for row, text in enumerate(texts, before + 1):
            try:
                number = text.cast(pa.float64()).as_py()
                if number is not None and not abs(number) <= LARGEST:
                    _finite(pa.array([number]), place, row - 1, named, file, ledger)
            except pa.ArrowInvalid:
                line = f"{place}{row}: {named} has {shown(text.as_py())}; regression needs a number such as 1.5"
                ledger.note(("number", file.path), line)


def _finite(numbers: pa.Array, place: str, before: int, named: str, file: DataFile, ledger: Ledger) -> None:
    # Comparison with NaN is false, so that this catches NaN too. Targets are float32.
    bad = pc.invert(pc.less_equal(pc.abs(numbers), LARGEST)).fill_null(False)
    count = pc.sum(bad).as_py() or 0
    if count:
        row = before + _first(bad)
        line = f"{place}{row}: {named} has {numbers[row - before - 1].as_py()}; regression needs a finite number"
        ledger.note(("finite", file.path), line, count)


def _first(mask: pa.Array) -> int:
    """Position of the first true, from 1."""
    return int(pc.index(mask, True).as_py()) + 1


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
