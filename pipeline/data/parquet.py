"""Parquet files to Arrow tables of plain types."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.columnar import conformed, require

PAGE_BUFFER = 8 << 20  # bytes of one range read, so that a large row group is not held as a whole


def tables(source: pa.NativeFile, name: str, columns: list[str], batch_rows: int) -> Iterator[pa.Table]:
    """Yield the asked columns of an open file as tables of at most `batch_rows` rows, types made plain.

    Raises UserError for a missing column and for what `conformed` refuses; pyarrow's own errors for a damaged file.
    """
    with pq.ParquetFile(source, buffer_size=PAGE_BUFFER) as file:
        found = file.schema_arrow.names
        if file.metadata.num_rows == 0 and not found:
            return
        require(columns, found, name)
        number = 0
        for batch in file.iter_batches(batch_rows, columns=columns):
            # A column "a" also brings one named "a.b" along: the reader takes dots for nesting.
            table = pa.Table.from_batches([batch]).select(columns)
            if len(batch):
                yield conformed(table, name, number)
            number += len(batch)


def names(source: pa.NativeFile) -> list[str]:
    """Names of all columns."""
    with pq.ParquetFile(source) as file:
        return list(file.schema_arrow.names)
