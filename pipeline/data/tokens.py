"""Rows of text to rows of tokens; both engines run this once for each row, never again in later epochs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import Config
from pipeline.data import documents
from pipeline.data.columns import columns_of, text_columns
from pipeline.data.inspect import Facts, encode_labels
from pipeline.model import load_tokenizer


@dataclass(frozen=True)
class Tokeniser:
    """Turns tables as `files.read` gives them into tokenised ones.

    The result has the columns `input_ids` (list of int32), `token_type_ids` (only for pairs, if the model has them),
    `label` (int64, float32, or a list of float32), `length` (int32, tokens), `weight` (float32, of the row's loss) and
    `truncated` (whether tokens beyond `data.max_length` were cut off). For causal-lm it is what `documents` says.
    """

    config: Config
    labels: tuple[str, ...]
    class_weights: tuple[float, ...] | None = None
    packs: bool = False

    @classmethod
    def of(cls, config: Config, facts: Facts, split: str) -> "Tokeniser":
        """For one split; class weights shape only the training loss, and only training rows are packed."""
        weights = None
        wanted = config.training.class_weights
        if wanted is not None and split == "train":
            counts = facts.label_counts["train"]
            if wanted == "balanced":
                weights = tuple(facts.rows["train"] / (len(facts.labels) * counts[label]) for label in facts.labels)
            else:
                weights = tuple(wanted.get(label, 1.0) for label in facts.labels)
        packs = config.model.task == "causal-lm" and config.data.packing and split == "train"
        return cls(config, tuple(facts.labels), weights, packs)

    @property
    def columns(self) -> list[str]:
        """Columns that the reader has to give."""
        return columns_of(self.config)

    def file(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The tokenised tables of one file, of the tables that `files.read` gives for it."""
        tokenised = (self(table) for table in tables if len(table))
        return documents.packed(tokenised, self.config.data.max_length) if self.packs else tokenised

    def __call__(self, table: pa.Table) -> pa.Table:
        """Tokenise a table of any number of rows; keeps their order."""
        data = self.config.data
        tokenizer = _tokenizer(self.config.model.model_dump_json(), self.config.storage.model_dump_json())
        if self.config.model.task == "causal-lm":
            texts, *answers = (table[name].to_pylist() for name in text_columns(self.config))
            if answers:
                return documents.of_pairs(tokenizer, texts, answers[0], data.max_length)
            return documents.of_texts(tokenizer, texts, data.max_length)
        texts = table[data.columns.text].to_pylist()
        pairs = table[data.columns.text_pair].to_pylist() if data.columns.text_pair else None
        encoded = tokenizer(texts, pairs, truncation=True, max_length=data.max_length, padding=False)
        lengths = np.fromiter((len(ids) for ids in encoded["input_ids"]), np.int32, len(table))
        label = encode_labels(table[data.columns.label], self.labels, self.config.model.task, data)
        weight = np.ones(len(table), np.float32)
        if self.class_weights is not None:
            weight = np.asarray(self.class_weights, np.float32)[label.to_numpy()]
        columns: dict[str, Any] = {"input_ids": pa.array(encoded["input_ids"], pa.list_(pa.int32()))}
        if pairs is not None and "token_type_ids" in encoded:
            columns["token_type_ids"] = pa.array(encoded["token_type_ids"], pa.list_(pa.int8()))
        columns["label"] = label
        columns["length"] = pa.array(lengths)
        columns["weight"] = pa.array(weight)
        columns["truncated"] = pa.array([bool(piece.overflowing) for piece in encoded.encodings], pa.bool_())
        return pa.table(columns)


@lru_cache(maxsize=4)
def _tokenizer(model: str, storage: str) -> Any:
    # Keyed by text: a process of Ray Data runs many blocks and must not load the tokenizer for each.
    from pipeline.config import Model, Storage

    return load_tokenizer(Model.model_validate_json(model), Storage.model_validate_json(storage))
