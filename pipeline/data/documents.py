"""Texts for a causal language model: rows to documents of tokens, and documents packed into sequences.

A document is a text, or a prompt with its completion, with the tokenizer's end-of-text token behind it, so that the
model learns to stop. A tokenised row has the columns

    input_ids    list of int32
    target       list of int8, 1 where a token counts in the loss; never for the first token of a document
    documents    list of int32, tokens of each document that the row holds
    length       int32, tokens; weight: float32, tokens that count; truncated: int32, documents that were cut

Packing is best-fit decreasing (as in "Fewer Truncations Improve Language Modeling", Ding et al. 2024, without splitting)
within windows of documents in file order. It is done once, when a file is tokenised, and depends on nothing but the file:
both engines and any number of workers train on the same sequences, in another order in each epoch.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WINDOW = 8192  # documents that are packed together: enough to fill sequences, little enough to hold in memory

Ids = list[int]


def of_texts(tokenizer: Any, texts: list[str], max_length: int) -> pa.Table:
    """A row for each text, all its tokens but the first counting; what is beyond `max_length` tokens is cut off."""
    # A row of no tokens at all (an empty text, no special tokens) still is a row.
    blank = [tokenizer.pad_token_id or 0]
    rows = [_ended(tokenizer, ids) or blank for ids in tokenizer(texts, verbose=False)["input_ids"]]
    targets = [[0] + [1] * (len(ids) - 1) for ids in rows]
    return _table(
        [ids[:max_length] for ids in rows],
        [target[:max_length] for target in targets],
        [len(ids) > max_length for ids in rows],
    )


def of_pairs(tokenizer: Any, prompts: list[str], completions: list[str], max_length: int) -> pa.Table:
    """A row for each prompt and completion, the completion's tokens counting.

    The prompt's tokens are those that it has alone, as it will be given to the model. A pair that is too long loses the
    beginning of its prompt, but for a begin-of-text token; a completion too long even so loses its end. Every row keeps
    a token in front of its completion, and so at least one token that counts.
    """
    rows, targets, cut = [], [], []
    encoded = (tokenizer(prompts, verbose=False)["input_ids"], _completions(tokenizer, prompts, completions))
    for asked, answer in zip(*encoded, strict=True):
        # Some tokenizers end each text with a special token; the prompt is not at its end.
        prompt = asked[:-1] if asked and asked[-1] == tokenizer.eos_token_id else asked
        answer = _ended(tokenizer, answer)
        cut.append(len(prompt) + len(answer) > max_length)
        if cut[-1]:
            answer = answer[: max_length - 1]
            room = max_length - len(answer)
            begin = prompt[:1] if room > 1 and prompt[:1] == [tokenizer.bos_token_id] else []
            prompt = begin + prompt[len(prompt) - (room - len(begin)) :] if len(prompt) > room else prompt
        rows.append(prompt + answer or [tokenizer.pad_token_id or 0])
        targets.append([0] * max(1, len(prompt)) + [1] * (len(answer) if prompt else len(answer) - 1))
    return _table(rows, targets, cut)


def _completions(tokenizer: Any, prompts: list[str], completions: list[str]) -> list[Ids]:
    """The completions' tokens: what follows the prompt's in the whole text where that is so, else those it has alone.

    Alone, a completion may get the space that some tokenizers put in front of every text; in the whole text, a token
    may reach over the border, which `generate` would never see.
    """
    bare = {"add_special_tokens": False, "verbose": False}
    wholes = tokenizer([a + b for a, b in zip(prompts, completions, strict=True)], **bare)["input_ids"]
    fronts, alone = tokenizer(prompts, **bare)["input_ids"], tokenizer(completions, **bare)["input_ids"]
    return [
        whole[len(front) :] if whole[: len(front)] == front else own
        for whole, front, own in zip(wholes, fronts, alone, strict=True)
    ]


def _ended(tokenizer: Any, ids: Ids) -> Ids:
    end = tokenizer.eos_token_id
    return ids if end is None or ids[-1:] == [end] else [*ids, end]


def _table(rows: list[Ids], targets: list[list[int]], cut: list[bool]) -> pa.Table:
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    ones = np.arange(len(rows) + 1, dtype=np.int32)
    return pa.table(
        {
            "input_ids": pa.array(rows, pa.list_(pa.int32())),
            "target": pa.array(targets, pa.list_(pa.int8())),
            "documents": pa.ListArray.from_arrays(pa.array(ones), pa.array(lengths)),
            "length": pa.array(lengths),
            "weight": pa.array(np.fromiter(map(sum, targets), np.float32, len(rows))),
            "truncated": pa.array(cut, pa.bool_()).cast(pa.int32()),
        }
    )


def packed(tables: Iterable[pa.Table], max_length: int, window: int = WINDOW) -> Iterator[pa.Table]:
    """The documents of a file, a row each, as sequences of up to `max_length` tokens; every document is in one of them."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        while sum(map(len, held)) >= window:
            whole = pa.concat_tables(held)
            yield _packed(whole.slice(0, window), max_length)
            held = [whole.slice(window)]
    if sum(map(len, held)):
        yield _packed(pa.concat_tables(held), max_length)


def _packed(table: pa.Table, max_length: int) -> pa.Table:
    lengths = table["length"].to_numpy()
    bins = fit(lengths, max_length)
    table = table.take(np.concatenate(bins)).combine_chunks()
    counts = np.fromiter(map(len, bins), np.int64, len(bins))
    firsts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    taken = table["length"].to_numpy()
    tokens = np.add.reduceat(taken, firsts)

    def joined(name: str, sizes: npt.NDArray[np.int64]) -> pa.ListArray:
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), _array(table[name]).flatten())

    def summed(name: str) -> pa.Array:
        values = table[name].to_numpy()
        return pa.array(np.add.reduceat(values, firsts).astype(values.dtype))

    return pa.table(
        {
            "input_ids": joined("input_ids", tokens),
            "target": joined("target", tokens),
            "documents": joined("documents", counts),
            "length": pa.array(tokens.astype(np.int32)),
            "weight": summed("weight"),
            "truncated": summed("truncated"),
        }
    )


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def fit(lengths: npt.NDArray[np.int32], size: int) -> list[list[int]]:
    """Numbers of the documents of each sequence: the longest first, each into the fullest one that has room for it.

    Documents of one length come in a random, fixed order, as neighbours in a file are often alike.
    """
    shuffled = np.random.default_rng(0).permutation(len(lengths))
    bins: list[list[int]] = []
    space: list[tuple[int, int]] = []  # room left and number of each sequence, least room first
    for document in shuffled[np.argsort(-lengths[shuffled].astype(np.int64), kind="stable")].tolist():
        length = int(lengths[document])
        at = bisect_left(space, (length, -1))
        if at == len(space):
            bins.append([document])
            room, number = size, len(bins) - 1
        else:
            room, number = space.pop(at)
            bins[number].append(document)
        if room > length:
            insort(space, (room - length, number))
    return bins
