"""Documents of a language model: their tokens, what counts in the loss, and how they share sequences."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.data import documents
from pipeline.data.batch import IGNORED, Collate, numbered
from tests import llama

END = 1


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return llama.tokenizer()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [row["text"] for row in llama.rows("train.csv", 611)]


def test_every_text_ends_with_the_end_token_and_all_its_tokens_but_the_first_count(tokenizer: Any) -> None:
    table = documents.of_texts(tokenizer, ["card", "my card is late"], 50)
    for ids, target, length, weight, text in zip(
        *(table[name].to_pylist() for name in ("input_ids", "target", "length", "weight")),
        ["card", "my card is late"],
        strict=True,
    ):
        assert ids == [*tokenizer(text)["input_ids"], END]
        assert target == [0] + [1] * (len(ids) - 1)
        assert (length, weight) == (len(ids), len(ids) - 1)


def test_a_text_that_is_too_long_is_cut_counted_and_not_ended(tokenizer: Any) -> None:
    whole = tokenizer("a card that is late " * 5)["input_ids"]
    table = documents.of_texts(tokenizer, ["a card that is late " * 5, "card"], 12)
    assert table["input_ids"][0].as_py() == whole[:12]
    assert table["truncated"].to_pylist() == [1, 0]


def test_an_empty_text_without_any_special_token_still_is_a_row() -> None:
    bare = llama.tokenizer(begin=False)
    bare.eos_token = None
    table = documents.of_texts(bare, ["", "card"], 12)
    assert table["length"].to_pylist()[0] == 1
    assert table["weight"].to_pylist()[0] == 0


def test_only_the_completion_and_its_end_count_and_the_prompt_has_the_tokens_it_has_alone(tokenizer: Any) -> None:
    prompt, completion = "Customer: where is my card Intent:", " card arrival"
    table = documents.of_pairs(tokenizer, [prompt], [completion], 100)
    ids, target = table["input_ids"][0].as_py(), table["target"][0].as_py()
    asked = tokenizer(prompt)["input_ids"]
    assert ids[: len(asked)] == asked
    counted = [token for token, counts in zip(ids, target, strict=True) if counts]
    assert target == [0] * len(asked) + [1] * len(counted)
    assert tokenizer.decode(counted) == " card arrival</s>"
    assert table["weight"][0].as_py() == len(counted)


def test_a_completion_is_never_merged_into_the_last_token_of_its_prompt(tokenizer: Any) -> None:
    # Of the whole text, "r" and "d" are one token.
    alone, whole = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("car", "card"))
    assert whole[: len(alone)] != alone
    table = documents.of_pairs(tokenizer, ["car"], ["d"], 100)
    ids, target = table["input_ids"][0].as_py(), table["target"][0].as_py()
    assert ids[:-2] == tokenizer("car")["input_ids"]
    assert tokenizer.decode([token for token, counts in zip(ids, target, strict=True) if counts]) == "d</s>"


@pytest.mark.parametrize("limit", [4, 8, 12])
def test_a_prompt_that_is_too_long_loses_its_beginning_and_keeps_the_completion(tokenizer: Any, limit: int) -> None:
    prompt = "Customer: where is the card that I have been waiting for Intent:"
    table = documents.of_pairs(tokenizer, [prompt], [" card"], limit)
    ids, target = table["input_ids"][0].as_py(), table["target"][0].as_py()
    asked = tokenizer(prompt)["input_ids"]
    assert len(ids) == limit
    assert ids[0] == asked[0]  # the begin token
    assert ids[1 : limit - 2] == asked[len(asked) - (limit - 3) :]
    assert ids[-1] == END
    assert target == [0] * (limit - 2) + [1, 1]
    assert table["truncated"].to_pylist() == [1]


def test_a_completion_that_is_too_long_alone_keeps_a_token_of_the_prompt_in_front(tokenizer: Any) -> None:
    table = documents.of_pairs(tokenizer, ["Intent:"], [" card" * 30], 10)
    assert table["length"].to_pylist() == [10]
    assert table["target"][0].as_py() == [0] + [1] * 9
    assert table["input_ids"][0].as_py()[0] == tokenizer("Intent:")["input_ids"][-1]


def _documents(table: pa.Table) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for ids, target, sizes in zip(
        *(table[name].to_pylist() for name in ("input_ids", "target", "documents")), strict=True
    ):
        at = 0
        for size in sizes:
            yield tuple(ids[at : at + size]), tuple(target[at : at + size])
            at += size
        assert at == len(ids)


@pytest.mark.parametrize("limit", [24, 64, 128])
def test_packing_loses_no_document_and_no_token_and_no_sequence_is_too_long(
    tokenizer: Any, texts: list[str], limit: int
) -> None:
    rows = documents.of_texts(tokenizer, texts, limit)
    packs = pa.concat_tables(documents.packed([rows], limit))
    assert sorted(_documents(packs)) == sorted(_documents(rows))
    lengths = packs["length"].to_numpy()
    assert lengths.max() <= limit
    assert lengths.tolist() == [len(ids) for ids in packs["input_ids"].to_pylist()]
    for name in ("length", "weight", "truncated"):
        assert packs[name].to_numpy().sum() == rows[name].to_numpy().sum()
    if limit > 24:  # where hardly two texts fit together
        # Full but for a sequence: what the tokens need at least, and 4 % more.
        assert len(packs) <= np.ceil(1.04 * lengths.sum() / limit) + 1


def test_packing_depends_on_the_file_alone_not_on_the_tables_that_it_is_read_in(
    tokenizer: Any, texts: list[str]
) -> None:
    rows = documents.of_texts(tokenizer, texts, 64)
    whole = pa.concat_tables(documents.packed([rows], 64, window=100))
    for size in (1, 7, 100, 250):
        parts = [rows.slice(at, size) for at in range(0, len(rows), size)]
        assert pa.concat_tables(documents.packed(parts, 64, window=100)).equals(whole)


def test_positions_begin_again_with_each_document_and_labels_leave_out_first_tokens_and_padding(
    tokenizer: Any, texts: list[str]
) -> None:
    rows = documents.of_texts(tokenizer, texts[:40], 64)
    packs = pa.concat_tables(documents.packed([rows], 64))
    packs = pa.concat_tables([packs, rows.slice(0, 1)])  # and a short one, which is filled up
    batch = Collate(1)(numbered(packs, np.arange(len(packs))))
    assert "attention_mask" not in batch
    for line, sizes in enumerate(packs["documents"].to_pylist()):
        positions = [position for size in sizes for position in range(size)]
        fill = batch["input_ids"].shape[1] - len(positions)
        assert batch["position_ids"][line].tolist() == positions + list(range(fill))
        expected = [
            token if position else IGNORED
            for token, position in zip(batch["input_ids"][line].tolist(), positions, strict=False)
        ]
        assert batch["labels"][line].tolist() == expected + [IGNORED] * fill
    # The end of a text counts, although the tokenizer fills up with the same token.
    assert (batch["labels"] == END).sum().item() == sum(map(len, packs["documents"].to_pylist()))
