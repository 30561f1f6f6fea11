"""JSON lines to Arrow tables, each value with the type it was written with.

Python's json module, line by line: pyarrow's reader settles a column's type in its first block, then raises on a
later one or changes what was written.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.config import Data
from pipeline.data import decoding
from pipeline.data.decoding import Opener
from pipeline.data.delimited import BATCH_CHARACTERS, CHUNK_ROWS, listed
from pipeline.errors import UserError

KINDS = {bool: "boolean", int: "number", float: "number", str: "string"}
TYPES = {"null": pa.null(), "boolean": pa.bool_(), "string": pa.string(), "number": pa.int64()}
ESCAPED_KEY = re.compile(r'[{,]\s*"(?=[^"]*\\)(?:[^"\\]|\\.)*"\s*:')  # te\u0078t is another spelling of text
NEUTRAL = ("null", "list of null")  # nothing that could disagree with the type of other rows


def tables(opened: Opener, name: str, columns: list[str], data: Data, batch_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of one JSONL file as tables of at most `batch_rows` rows; a key that a row lacks is null.

    Every column of a table holds one kind of value (texts, numbers, booleans, lists of one of them): a table ends where
    the kind changes, so that nothing is converted silently. Numbers are int64, or float64 when one has a fraction or
    exponent. Blank lines are no rows. Raises UserError with row and line for what is no JSON object, for nested
    objects, numbers beyond 64 bits and lists of several kinds, and for a column that the first rows all lack.
    """
    number = 0  # rows before the batch
    batch: list[tuple[Any, ...]] = []
    kinds = ["null"] * len(columns)
    characters = 0
    checked = False
    for chunk in _chunks(opened, name, data, columns):
        if not checked:
            _require(columns, chunk, name)
            checked = True
        for record in chunk:
            row = tuple(map(record.get, columns))
            row_kinds = [KINDS.get(type(value)) or kind(value) for value in row]
            if row_kinds != kinds:
                joined = [_joined(old, new) for old, new in zip(kinds, row_kinds, strict=True)]
                if any(both is None for both in joined):
                    yield _table(columns, batch, kinds, name, number)
                    number += len(batch)
                    batch, kinds, characters = [], row_kinds, 0
                else:
                    kinds = [both for both in joined if both is not None]
            batch.append(row)
            characters += sum(len(value) for value in row if type(value) is str)
            if len(batch) >= batch_rows or characters > BATCH_CHARACTERS:
                yield _table(columns, batch, kinds, name, number)
                number += len(batch)
                batch, kinds, characters = [], ["null"] * len(columns), 0
    if batch:
        yield _table(columns, batch, kinds, name, number)


def names(opened: Opener, name: str, data: Data) -> list[str]:
    """The keys of the first rows, each once."""
    return _keys(next(_chunks(opened, name, data, []), []))


def kind(value: Any) -> str:
    """`null`, `boolean`, `number`, `string`, `object`, or `list of` one of these; `list of mixed` for several."""
    if value is None:
        return "null"
    if isinstance(value, list):
        inner = {kind(item) for item in value} - {"null"}
        return "list of " + (inner.pop() if len(inner) == 1 else "mixed" if inner else "null")
    return KINDS.get(type(value), "object")


def _joined(old: str, new: str) -> str | None:
    """The kind of a column that has both; None if they do not go together."""
    if old == new or new == "null" or (new == "list of null" and old.startswith("list of ")):
        return old
    if old == "null" or (old == "list of null" and new.startswith("list of ")):
        return new
    return None


def _chunks(opened: Opener, name: str, data: Data, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
    number, line = 0, 0
    keys = [json.dumps(column, ensure_ascii=False) for column in columns]
    try:
        with decoding.lines(opened, data.encoding) as lines:
            while texts := list(itertools.islice(lines, CHUNK_ROWS)):
                chunk = []
                for text in texts:
                    line += 1
                    if text.isspace():
                        continue
                    number += 1
                    try:
                        record = json.loads(text)
                    except (ValueError, RecursionError) as error:
                        raise UserError(f"{name}: row {number} (line {line}) is not JSON: {error}") from None
                    if type(record) is not dict:
                        raise UserError(
                            f"{name}: row {number} (line {line}) is {_shown(record)}; each line must be one "
                            'JSON object, such as {"text": "...", "label": "..."}'
                        )
                    # May as well be a value.
                    if any(text.count(key) > 1 for key in keys) or ("\\" in text and ESCAPED_KEY.search(text)):
                        _refuse_twice(text, columns, f"{name}: row {number} (line {line})")
                    chunk.append(record)
                if chunk:
                    yield chunk
    except UnicodeError:
        raise decoding.undecodable(opened, name, data.encoding) from None


def _refuse_twice(text: str, columns: list[str], place: str) -> None:
    """Python's json keeps the last of several values of one key, and nobody would know."""
    objects: list[list[tuple[str, Any]]] = []
    json.loads(text, object_pairs_hook=objects.append)
    names = [key for key, _ in objects[-1]]  # the outermost object ends last
    for column in columns:
        if names.count(column) > 1:
            raise UserError(f"{place} has {names.count(column)} values of {column!r}; one is needed")


def _require(columns: list[str], chunk: list[dict[str, Any]], name: str) -> None:
    found = _keys(chunk)
    missing = [column for column in columns if column not in found]
    if missing:
        raise UserError(*(f"{name}: no column {column!r}; the file has {listed(found)}" for column in missing))


def _keys(chunk: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(itertools.chain.from_iterable(chunk)))


def _table(columns: list[str], batch: list[tuple[Any, ...]], kinds: list[str], name: str, before: int) -> pa.Table:
    arrays = []
    for place, (column, kind_) in enumerate(zip(columns, kinds, strict=True)):
        values = [row[place] for row in batch]
        try:
            arrays.append(_array(values, kind_))
        except (ValueError, OverflowError, TypeError, KeyError, pa.ArrowException):
            raise _unfit(values, kind_, column, name, before) from None
    return pa.table(arrays, names=columns)


def _array(values: list[Any], kind_: str) -> pa.Array:
    depth = kind_.count("list of ")
    item = TYPES[kind_.removeprefix("list of ")]  # KeyError: objects, and lists of lists
    if item == pa.int64() and any(type(value) is float for value in _flat(values, depth)):
        item = pa.float64()
        values = [_floats(value) for value in values]
    return pa.array(values, pa.list_(item) if depth else item)


def _flat(values: list[Any], depth: int) -> Iterator[Any]:
    return (item for value in values if value for item in value) if depth else iter(values)


def _floats(value: Any) -> Any:
    # Arrow refuses integers above 2**53 in a float column; they are rounded here as a float literal would be.
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return None if value is None else float(value)


def _unfit(values: list[Any], kind_: str, column: str, name: str, before: int) -> UserError:
    """The error for the first value of a column that Arrow does not take, found by trying one after the other."""
    for number, value in enumerate(values, before + 1):
        try:
            _array([value], kind_)
        except (ValueError, OverflowError, TypeError, KeyError, pa.ArrowException):
            return UserError(
                f"{name}: row {number}: column {column!r} has {_shown(value)}; a text, a 64-bit number, true or false, "
                "or a list of one of these is needed"
            )
    return UserError(f"{name}: rows {before + 1} to {before + len(values)}: column {column!r} cannot be read")


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
