"""Parquet files to Arrow tables of plain types."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UserError

PAGE_BUFFER = 8 << 20  # bytes of one range read, so that a large row group is not held as a whole


def tables(source: pa.NativeFile, name: str, columns: list[str], batch_rows: int) -> Iterator[pa.Table]:
    """Yield the asked columns of an open file as tables of at most `batch_rows` rows, types made plain (`plain`).

    Raises UserError for a missing column and for integers beyond int64; pyarrow's own errors for a damaged file.
    """
    with pq.ParquetFile(source, buffer_size=PAGE_BUFFER) as file:
        found = file.schema_arrow.names
        if file.metadata.num_rows == 0 and not found:
            return
        problems = []
        for column in columns:
            if found.count(column) != 1:
                count = "no column" if column not in found else f"{found.count(column)} columns are named"
                problems.append(f"{name}: {count} {column!r}; the file has {', '.join(map(repr, found)) or 'none'}")
        if problems:
            raise UserError(*problems)
        number = 0
        for batch in file.iter_batches(batch_rows, columns=columns):
            # A column "a" also brings one named "a.b" along: the reader takes dots for nesting.
            table = pa.Table.from_batches([batch]).select(columns)
            for place, field in enumerate(table.schema):
                wanted = plain(field.type)
                if wanted != field.type:
                    try:
                        table = table.set_column(place, field.name, table.column(place).cast(wanted))
                    except pa.ArrowInvalid as error:
                        raise UserError(
                            f"{name}: rows {number + 1} to {number + len(batch)}: column {field.name!r} of type "
                            f"{field.type} does not fit {wanted}: {error}"
                        ) from None
            if len(batch):
                yield table
            number += len(batch)


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
    if (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    ):
        return pa.list_(plain(kind.value_type))
    return kind
