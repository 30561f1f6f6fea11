"""CSV files to Arrow tables, all columns as texts, exactly as written.

Python's csv module in strict mode: it splits over two million short rows a second, a hundred times what a tokenizer
takes, and it neither guesses types nor nulls, nor swallows rows after a quote that is never closed.
"""

import csv
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.config import Data
from pipeline.data import decoding
from pipeline.data.decoding import Opener
from pipeline.errors import UserError

if TYPE_CHECKING:
    import _csv

CHUNK_ROWS = 1024
BUFFER = 1 << 20  # bytes of one read of the file
BATCH_CHARACTERS = 32 << 20  # a batch of very long texts ends here, so that memory does not grow with their length
CELL_LIMIT = (1 << 31) - 1  # what one Arrow string column holds; the csv module's own limit is 131,072 characters
DELIMITERS = ",;\t|"


def tables(opened: Opener, name: str, columns: list[str], data: Data, batch_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of one CSV file as tables of at most `batch_rows` rows with string columns, none of them null.

    The first line that is not blank names the columns; blank lines are no rows. Raises UserError for a missing column,
    a row with more or fewer cells than the header, a quote out of place and bytes outside the encoding, each with its
    row (from 1, the header not counted) and line.
    """
    csv.field_size_limit(CELL_LIMIT)
    if data.delimiter is not None and data.delimiter in '"\r\n':
        raise UserError(f"data.delimiter: {data.delimiter!r} cannot separate cells; such as ',' or ';' or '\\t' can")
    try:
        with decoding.lines(opened, data.encoding) as lines:
            reader = rows(lines, data)
            header = next(filter(None, reader), None)
            if header is None:
                return
            places = positions(header, columns, name)
            cells: list[list[str]] = [[] for _ in columns]
            characters = 0
            while chunk := list(itertools.islice(reader, min(CHUNK_ROWS, batch_rows - len(cells[0])))):
                if set(map(len, chunk)) != {len(header)}:
                    chunk = [row for row in chunk if row]
                    if any(len(row) != len(header) for row in chunk):
                        raise misplaced(opened, name, data)
                for column, place in zip(cells, places, strict=True):
                    column.extend([row[place] for row in chunk])
                    characters += sum(map(len, column[len(column) - len(chunk) :]))
                if len(cells[0]) >= batch_rows or characters > BATCH_CHARACTERS:
                    yield _table(columns, cells)
                    cells, characters = [[] for _ in columns], 0
            if cells[0]:
                yield _table(columns, cells)
    except UnicodeError:
        raise decoding.undecodable(opened, name, data.encoding) from None
    except csv.Error:
        raise misplaced(opened, name, data) from None


def names(opened: Opener, name: str, data: Data) -> list[str]:
    """The names in the header; none of a file without one."""
    csv.field_size_limit(CELL_LIMIT)
    try:
        with decoding.lines(opened, data.encoding) as lines:
            return next(filter(None, rows(lines, data)), [])
    except UnicodeError:
        raise decoding.undecodable(opened, name, data.encoding) from None
    except csv.Error:
        raise misplaced(opened, name, data) from None


def rows(lines: Iterable[str], data: Data) -> "_csv.Reader":
    """A csv reader over the lines, with the delimiter of the configuration or the one that the header shows."""
    lines = iter(lines)
    delimiter = data.delimiter
    if delimiter is None:
        # A header may span lines inside quotes; more than these few are not looked at.
        sample = list(itertools.islice(lines, 20))
        lines = itertools.chain(sample, lines)
        delimiter = found_delimiter(sample, data)
    return csv.reader(lines, delimiter=delimiter, strict=True)


def found_delimiter(sample: list[str], data: Data) -> str:
    """The delimiter that makes the header hold the configured columns; among equals the one that makes most columns."""
    wanted = {data.columns.text, data.columns.text_pair, data.columns.label}
    best, best_score = DELIMITERS[0], (-1, -1)
    for delimiter in DELIMITERS:
        try:
            header = next(filter(None, csv.reader(iter(sample), delimiter=delimiter, strict=True)), [])
        except csv.Error:
            continue
        score = (len(wanted & set(header)), len(header))
        if score > best_score:
            best, best_score = delimiter, score
    return best


def positions(header: list[str], columns: list[str], name: str) -> list[int]:
    """Where the asked columns stand. Raises UserError for those missing or there twice, listing what was found."""
    problems = []
    for column in columns:
        if header.count(column) == 0:
            problems.append(f"{name}: no column {column!r}; the file has {listed(header)}")
        elif header.count(column) > 1:
            problems.append(f"{name}: {header.count(column)} columns are named {column!r}; one is needed")
    if problems:
        raise UserError(*problems)
    return [header.index(column) for column in columns]


def listed(names: list[str]) -> str:
    """Names of columns for a message: the first ones, each cut where it is no name any more."""
    if not names:
        return "none"
    texts = [text if len(text) <= 60 else f"{text[:57]}..." for text in map(repr, names[:20])]
    return ", ".join(texts) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def misplaced(opened: Opener, name: str, data: Data) -> UserError:
    """The error for the first malformed row; reads the file once more, row by row, to name its row and line."""
    with decoding.lines(opened, data.encoding) as lines:
        reader = rows(lines, data)
        number, start, header = 0, 1, None
        try:
            for row in reader:
                if row and header is None:
                    header = row
                elif row and header is not None:
                    number += 1
                    if len(row) != len(header):
                        return UserError(
                            f"{name}: row {number} (line {start}) has {len(row)} cells, the header has {len(header)}; "
                            "a cell with a delimiter, quote or line end in it needs quotes around it"
                        )
                start = reader.line_num + 1
        except csv.Error as error:
            return UserError(
                f"{name}: row {number + (header is not None)} (line {start}) is malformed: {error}; "
                "a quoted cell ends with its quote, and a quote within one is written twice"
            )
        except UnicodeError:
            return decoding.undecodable(opened, name, data.encoding)
    return UserError(f"{name}: changed while it was read")


def _table(columns: list[str], cells: list[list[str]]) -> pa.Table:
    return pa.table([pa.array(column, pa.string()) for column in cells], names=columns)
