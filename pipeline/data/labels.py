"""Labels: which kinds there are, what a class is called, and the numbers that a model is trained on.

A class is called by the text that its label is written as, whatever the column's type: 3, 3.0 and decimal 3 are "3",
true is "true". So one mapping serves all files, both engines and the exported model.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import Data, Task
from pipeline.errors import UserError

INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.0+)?")
"""Texts of a CSV that are whole numbers; `1.0` is what many programs write for 1 when a column has gaps. Not `007`."""
EXACT = 2**53
"""Floats below it are the whole numbers that were written. Others may stand for several, and so for several classes."""
NO_LABEL = ("-1", "-100")
"""Numbers by which data sets mark rows without a label."""


def kind_of(column: pa.DataType) -> str:
    """`string`, `number`, `boolean`, `null`, `list of` one of these, or Arrow's name of another type."""
    if pa.types.is_string(column):
        return "string"
    if pa.types.is_integer(column) or pa.types.is_floating(column):
        return "number"
    if pa.types.is_boolean(column):
        return "boolean"
    if pa.types.is_list(column):
        return f"list of {kind_of(column.value_type)}"
    return str(column)


def class_name(value: Any) -> str | None:
    """The name of the class that a label stands for; None for numbers that are not whole, or rounded perhaps."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT else None
    return str(value)


def whole_number(text: str) -> str | None:
    """The class name for a text that is a whole number, as `class_name` gives it for the number; else None."""
    return str(int(text.partition(".")[0])) if INTEGER.fullmatch(text) else None


def boolean(text: str) -> str | None:
    """The class name for a text that reads true or false in any case; else None."""
    return text.lower() if text.lower() in ("true", "false") else None


def sorted_names(names: Sequence[str], label_type: str) -> list[str]:
    """Class names in the order of their numbers."""
    return sorted(names, key=int) if label_type == "integer" else sorted(names)


def elements(column: pa.Array, data: Data) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.int64]]]:
    """Labels of multi-label rows, one after the other, and the row (from 0) of each.

    Rows are lists, or texts joined with `data.label_separator`, whose parts are stripped and dropped when empty.
    """
    if pa.types.is_string(column.type):
        column = pc.split_pattern(column, data.label_separator)
        values = pc.utf8_trim_whitespace(column.flatten())
        parents = pc.list_parent_indices(column).to_numpy().astype(np.int64)
        kept = pc.not_equal(values, "")
        return values.filter(kept), parents[kept.to_numpy(zero_copy_only=False)]
    # Not Arrow's parent indices, which count what lies behind a null too.
    return column.flatten(), np.repeat(np.arange(len(column)), pc.list_value_length(column).fill_null(0).to_numpy())


def encode_labels(column: pa.ChunkedArray | pa.Array, labels: Sequence[str], task: Task, data: Data) -> pa.Array:
    """The training targets of a label column as `files.read` gives it, one for each row.

    int64 class numbers for text-classification, float32 numbers for regression, and for multi-label a list of float32
    with a 1 for each of the row's labels, of the length of `labels`. The same label gets the same number from every
    file type. Raises UserError for a label that is not among `labels`, or a text that is no number.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # what combine_chunks gives for no rows in some versions
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if task == "regression":
        try:
            return array.cast(pa.float64(), safe=False).cast(pa.float32())
        except pa.ArrowException as error:
            raise UserError(f"label column {data.columns.label!r}: {error}") from None
    if task == "multi-label":
        values, parents = elements(array, data)
        hot = np.zeros((len(array), len(labels)), np.float32)
        hot[parents, _numbers(values, labels, data)] = 1
        offsets = np.arange(len(array) + 1, dtype=np.int32) * len(labels)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(hot.ravel()))
    return pa.array(_numbers(array, labels, data))


def _numbers(array: pa.Array, labels: Sequence[str], data: Data) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Class number of each label, shape (labels in `array`,). Distinct ones are looked up once."""
    number_of = {label: number for number, label in enumerate(labels)}
    encoded = array.dictionary_encode(null_encoding="encode")
    numbers = np.empty(len(encoded.dictionary), np.int64)
    for place, value in enumerate(encoded.dictionary.to_pylist()):
        number = None if value is None else number_of.get(class_name(value) or "")
        if number is None and isinstance(value, str):
            # A CSV beside typed files, or with 1 in one file and 1.0 in the next: names are those of the numbers.
            number = number_of.get(whole_number(value) or boolean(value) or "")
        if number is None:
            raise UserError(
                f"label column {data.columns.label!r}: {value!r} is not among the {len(labels)} known classes"
            )
        numbers[place] = number
    rows: np.ndarray[Any, np.dtype[np.int64]] = numbers[encoded.indices.to_numpy()]
    return rows
