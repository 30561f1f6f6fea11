"""Arrow IPC files, in either of their two forms, to tables of plain types; `datasets` writes its tables so."""

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import ipc

from pipeline.data.columnar import conformed, require

MAGIC = b"ARROW1"  # of the form with a footer (Feather too); the stream that `save_to_disk` writes has none


def tables(source: pa.NativeFile, name: str, columns: list[str], batch_rows: int) -> Iterator[pa.Table]:
    """Yield the asked columns of an open file as tables of at most `batch_rows` rows, types made plain.

    Raises UserError for a missing column and for what `conformed` refuses; pyarrow's own errors for a damaged file.
    """
    schema, with_footer = _schema(source)
    require(columns, schema.names, name)
    # Only these are read and decompressed.
    options = ipc.IpcReadOptions(included_fields=sorted(schema.get_field_index(column) for column in columns))
    source.seek(0)
    number = 0
    with _opened(source, with_footer, options) as reader:
        batches = map(reader.get_batch, range(reader.num_record_batches)) if with_footer else iter(reader)
        for batch in batches:
            table = conformed(pa.Table.from_batches([batch]).select(columns), name, number)
            for start in range(0, len(table), batch_rows):
                yield table.slice(start, batch_rows)
            number += len(table)


def names(source: pa.NativeFile) -> list[str]:
    """Names of all columns."""
    return list(_schema(source)[0].names)


def _schema(source: pa.NativeFile) -> tuple[pa.Schema, bool]:
    """The schema of a file and whether it has the form with a footer."""
    with_footer = source.read(len(MAGIC)) == MAGIC
    source.seek(0)
    with ipc.open_file(source) if with_footer else ipc.open_stream(source) as reader:
        return reader.schema, with_footer


def _opened(source: pa.NativeFile, with_footer: bool, options: ipc.IpcReadOptions) -> ipc.RecordBatchReader:
    return ipc.open_file(source, options=options) if with_footer else ipc.open_stream(source, options=options)
