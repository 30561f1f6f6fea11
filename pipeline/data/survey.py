"""What `pipeline check` shows of the data beside the counts of `inspect`: columns, lengths in tokens, the first rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import Config
from pipeline.data.facts import Facts
from pipeline.data.files import columns_of, read
from pipeline.data.tokens import Tokeniser
from pipeline.model import load_tokenizer

# Above one of these a share of the rows is measured, spread evenly: some ten seconds of tokenising.
MOST_ROWS, MOST_BYTES = 20_000, 40 << 20
FIRST_ROWS = 3
PERCENTILES = (50, 90, 99)
NO_CUT = 1 << 20  # tokens; lengths are told as they are before anything is cut


def survey(config: Config, facts: Facts) -> dict[str, dict[str, Any]]:
    """For each split what docs/data.md lists under `pipeline check --json`, of JSON's own types."""
    return {split: _split(config, facts, split) for split in facts.files}


def _split(config: Config, facts: Facts, split: str) -> dict[str, Any]:
    files, rows = facts.files[split], facts.rows[split]
    filled = [file for file, count in zip(files, facts.rows_per_file[split], strict=True) if count]
    return {
        "files": [
            {"path": file.name, "format": file.format, "bytes": file.size, "rows": count}
            for file, count in zip(files, facts.rows_per_file[split], strict=True)
        ],
        "rows": rows,
        "columns": columns_of(filled[0], config.data, config.storage),
        "empty_texts": facts.empty_texts.get(split, 0),
        "labels": facts.label_counts.get(split, {}),
        **_lengths(config, facts, split),
        "first_rows": _first_rows(config, facts, split),
    }


def _lengths(config: Config, facts: Facts, split: str) -> dict[str, Any]:
    size = sum(file.size for file in facts.files[split])
    stride = max(1, -(-facts.rows[split] // MOST_ROWS), -(-size // MOST_BYTES))
    uncut = config.model_copy(update={"data": config.data.model_copy(update={"max_length": NO_CUT})})
    tokeniser = Tokeniser.of(uncut, facts, split)
    lengths = np.concatenate(
        [tokeniser(table)["length"].to_numpy() for table in _rows(config, facts, split, tokeniser.columns, stride)]
    )
    found = np.percentile(lengths, PERCENTILES, method="higher")
    return {
        "lengths": {
            "measured_rows": len(lengths),
            **{f"p{share}": int(value) for share, value in zip(PERCENTILES, found, strict=True)},
            "max": int(lengths.max()),
        },
        "max_length": config.data.max_length,
        "truncated_share": float((lengths > config.data.max_length).mean()),
    }


def _rows(config: Config, facts: Facts, split: str, columns: list[str], stride: int) -> Iterator[pa.Table]:
    """Every `stride`-th row of a split, the first among them."""
    before = 0
    for file in facts.files[split]:
        for table in read(file, columns, config.data, config.storage):
            wanted = np.arange(-before % stride, len(table), stride)
            if len(wanted):
                yield table.take(wanted)
            before += len(table)


def _first_rows(config: Config, facts: Facts, split: str) -> list[dict[str, Any]]:
    """The first rows as the model gets them: cut, with special tokens, the label as it is trained on."""
    tokeniser = Tokeniser.of(config, facts, split)
    tokenizer = load_tokenizer(config.model, config.storage)
    table = next(_rows(config, facts, split, tokeniser.columns, 1)).slice(0, FIRST_ROWS)
    tokens = tokeniser(table)
    return [
        {"text": tokenizer.decode(ids), "tokens": len(ids), "label": label, "target": target}
        for ids, label, target in zip(
            tokens["input_ids"].to_pylist(),
            table[config.data.columns.label].to_pylist(),
            tokens["label"].to_pylist(),
            strict=True,
        )
    ]
