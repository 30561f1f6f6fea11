"""A bad input, and short ways to write one down."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GOOD = b"text,category\n" + b"".join(b"text %d,%s\n" % (number, b"ab"[number % 2 :][:1]) for number in range(8))
SILENT = "SILENT"
"""Stands for the address of a hub that takes connections and never answers."""


@dataclass(frozen=True)
class Case:
    """`files` are put beside, or in the place of, a good train.csv and validation.csv; `job` is the configuration file.

    Exactly one problem is told, and it holds all `words`.
    """

    name: str
    words: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    job: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


def setting(name: str, override: str, *words: str, **more: Any) -> Case:
    return Case(name, words, tuple(override.split(" ")), **more)


def train(name: str, content: bytes, *words: str, file: str = "train.csv", overrides: tuple[str, ...] = ()) -> Case:
    """Another training file, which is asked for by its name."""
    return Case(name, (f"data.train: {file}", *words), (f"data.train={file}", *overrides), {file: content})


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def labelled(*labels: object) -> bytes:
    return lines(*({"text": f"text {number}", "category": label} for number, label in enumerate(labels)))


def parquet(**columns: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()


def arrow(**columns: Any) -> bytes:
    target = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue()
