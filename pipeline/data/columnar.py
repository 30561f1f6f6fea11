"""Columns of Parquet and Arrow files: found by name, checked, and made one of a few plain types."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.delimited import listed
from pipeline.errors import UserError


def require(columns: list[str], found: list[str], name: str) -> None:
    """Raises UserError for each asked column that a file lacks or has twice, listing what it has."""
    problems = []
    for column in columns:
        if found.count(column) != 1:
            count = "no column" if column not in found else f"{found.count(column)} columns are named"
            problems.append(f"{name}: {count} {column!r}; the file has {listed(found)}")
    if problems:
        raise UserError(*problems)


def conformed(table: pa.Table, name: str, before: int) -> pa.Table:
    """The table with its types made plain; `before` rows of the file were in front of it.

    Raises UserError for text that is not UTF-8, damaged columns and integers beyond int64.
    """
    for place, field in enumerate(table.schema):
        try:
            # Readers take lengths, offsets and bytes as the file has them; what is wrong would show, or crash, later.
            table.column(place).validate(full=True)
        except pa.ArrowInvalid as error:
            raise _invalid(table.column(place), field.name, name, before, error) from None
        wanted = plain(field.type)
        if wanted != field.type:
            try:
                made = pa.chunked_array([_cast(chunk, wanted) for chunk in table.column(place).chunks], wanted)
                table = table.set_column(place, field.name, made)
            except pa.ArrowInvalid as error:
                raise UserError(
                    f"{name}: rows {before + 1} to {before + len(table)}: column {field.name!r} of type "
                    f"{field.type} does not fit {wanted}: {error}"
                ) from None
    return table


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """`array.cast(wanted)`, and right where Arrow's own cast is not."""
    if isinstance(array, pa.ExtensionArray):
        return _cast(array.storage, wanted)
    if _is_view(array.type):
        # Arrow 26 gives the lists that it makes of views wrong ends, so that rows have the labels of others or none.
        lengths = pc.list_value_length(array).fill_null(0).to_numpy()
        ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(ends, _cast(array.flatten(), wanted.value_type), mask=array.is_null())
    lists = pa.types.is_list(wanted)
    kind = array.type.value_type if lists else array.type
    if pa.types.is_decimal32(kind):  # of which Arrow 26 says that no value fits an integer
        wider = pa.decimal128(kind.precision, kind.scale)
        array = array.cast(pa.list_(wider) if lists else wider)
    return array.cast(wanted)


def _invalid(column: pa.ChunkedArray, field: str, name: str, before: int, error: pa.ArrowInvalid) -> UserError:
    words = str(error).splitlines()[0]
    if "UTF8" in words and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        # Offsets are judged before the bytes, so that single values can be looked at here.
        for row, value in enumerate(column, before + 1):
            try:
                value.as_py()
            except UnicodeDecodeError:
                return UserError(f"{name}: row {row}: column {field!r} holds bytes that are not UTF-8; write it as text")
    return UserError(f"{name}: rows {before + 1} to {before + len(column)}: column {field!r} is damaged: {words}")


def plain(kind: pa.DataType) -> pa.DataType:
    """The type that rows of `kind` are handed on as: string, int64, float64, bool, or a list of one of these.

    Decimals without decimal places become int64, others float64; dictionaries their values. A type that is none of
    these, such as binary, date or struct, stays what it is.
    """
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain(kind.storage_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.int64() if kind.scale <= 0 else pa.float64()
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if (lists and not _is_view(kind.value_type)) or _is_view(kind):
        return pa.list_(plain(kind.value_type))
    return kind


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))
