"""What is known of the data before any worker starts."""

import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import Config
from pipeline.data.inspect import Facts, encode_labels, inspect
from pipeline.errors import UserError
from tests.unit.conftest import Write
from tests.unit.tables import config, ids, labelled, problems

ROOT = Path(__file__).resolve().parents[2]


# The default data set


def test_banking77_has_10003_and_3080_rows_in_77_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    facts = inspect(Config())
    assert facts.rows == {"train": 10003, "validation": 3080}
    assert facts.labels == sorted(json.loads((ROOT / "data/banking77/categories.json").read_text()))
    assert len(facts.labels) == 77
    assert set(facts.label_counts["validation"].values()) == {40}
    assert sum(facts.label_counts["train"].values()) == 10003
    assert facts.empty_texts == {"train": 0, "validation": 0}
    assert facts.label_type == "string"


def test_facts_survive_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    facts = inspect(Config())
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_a_million_rows_take_seconds(write: Write) -> None:
    count = 1_000_000
    labels = pa.DictionaryArray.from_arrays(pa.array(np.arange(count) % 77, pa.int32()), [f"c{n}" for n in range(77)])
    write("train.parquet", pa.table({"text": pa.array(["some text of a row"] * count), "label": labels}))
    began = time.process_time()
    facts = inspect(config())
    assert time.process_time() - began < 8
    assert facts.rows["train"] == count
    assert sum(facts.label_counts["train"].values()) == count


# One mapping whatever the type


@pytest.mark.parametrize(
    ("labels", "names", "kind", "expected"),
    [
        (pa.array(["b", "a", "b"]), ["a", "b"], "string", [1, 0, 1]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["a", "b"], "string", [1, 0, 1]),
        (pa.array([10, 9, 10]), ["9", "10"], "integer", [1, 0, 1]),
        (pa.array([10, 9, 10], pa.uint8()), ["9", "10"], "integer", [1, 0, 1]),
        (pa.array([10, 9, 10]).dictionary_encode(), ["9", "10"], "integer", [1, 0, 1]),
        (pa.array([10.0, 9.0, 10.0], pa.float32()), ["9", "10"], "integer", [1, 0, 1]),
        (pa.array([Decimal("10.0"), Decimal(9), Decimal(10)], pa.decimal128(5, 1)), ["9", "10"], "integer", [1, 0, 1]),
        (pa.array([Decimal(10), Decimal(9), Decimal(10)], pa.decimal128(5, 0)), ["9", "10"], "integer", [1, 0, 1]),
        (pa.array([True, False, True]), ["false", "true"], "boolean", [1, 0, 1]),
        (pa.array([2, 1, 2]), ["1", "2"], "integer", [1, 0, 1]),
        (pa.array([1, -1, 1]), ["-1", "1"], "integer", [1, 0, 1]),
        (pa.array([1, -2, 1]), ["-2", "1"], "integer", [1, 0, 1]),
    ],
)
def test_every_label_type_gives_one_mapping(
    write: Write, labels: pa.Array, names: list[str], kind: str, expected: list[int]
) -> None:
    write("train.parquet", pa.table({"text": ["x", "y", "z"], "label": labels}))
    facts = inspect(config())
    assert (facts.labels, facts.label_type) == (names, kind)
    assert facts.label_counts == {"train": {names[0]: 1, names[1]: 2}}
    assert ids(config(), facts) == expected


@pytest.mark.parametrize(
    ("cells", "names", "kind"),
    [
        (["1", "10", "2"], ["1", "2", "10"], "integer"),
        (["1.0", "10.0", "2"], ["1", "2", "10"], "integer"),
        (["1", "10", "x"], ["1", "10", "x"], "string"),
        (["1", "10", "02"], ["02", "1", "10"], "string"),
        (["null", "NA", "None"], ["NA", "None", "null"], "string"),
        (["True", "False", "True"], ["False", "True"], "string"),
        (["b", "a", "A"], ["A", "a", "b"], "string"),
    ],
)
def test_csv_labels_are_whole_numbers_if_all_are(write: Write, cells: list[str], names: list[str], kind: str) -> None:
    write("train.csv", "text,label\n" + "".join(f"t,{cell}\n" for cell in cells))
    facts = inspect(config())
    assert (facts.labels, facts.label_type) == (names, kind)
    assert [names[number] for number in ids(config(), facts)] == [cell.removesuffix(".0") for cell in cells]


def test_csv_beside_typed_files_takes_their_type(write: Write) -> None:
    write("train.csv", "text,label\na,10\nb,2\n")
    write("train.jsonl", labelled(2, 10.0))
    write("train.parquet", pa.table({"text": ["a", "b"], "label": pa.array([Decimal(2), Decimal(10)])}))
    facts = inspect(config())
    assert facts.labels == ["2", "10"]
    assert facts.rows_per_file == {"train": [2, 2, 2]}
    assert facts.label_counts == {"train": {"2": 3, "10": 3}}
    assert ids(config(), facts) == [1, 0, 0, 1, 0, 1]


def test_csv_words_beside_booleans_are_booleans(write: Write) -> None:
    write("train.csv", "text,label\na,True\nb,false\n")
    write("train.jsonl", labelled(True, False))
    facts = inspect(config())
    assert (facts.labels, facts.label_type) == (["false", "true"], "boolean")
    assert ids(config(), facts) == [1, 0, 1, 0]


@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=9, unique=True))
@settings(max_examples=50, deadline=None)
def test_a_label_gets_the_same_number_from_every_type(values: list[int]) -> None:
    names = [str(value) for value in sorted(values)]
    expected = [names.index(str(value)) for value in values]
    data = Config().data
    for column in (pa.array(values), pa.array(values, pa.float64()), pa.array([str(v) for v in values])):
        for chunked in (
            column,
            pa.chunked_array([column[:1], column[1:]]),
            column.dictionary_encode().cast(column.type),
        ):
            assert encode_labels(chunked, names, "text-classification", data).to_pylist() == expected


def test_encoding_gives_int64_ids_float32_numbers_and_rows_of_float32() -> None:
    data = Config().data
    assert encode_labels(pa.array(["b"]), ["a", "b"], "text-classification", data).type == pa.int64()
    numbers = encode_labels(pa.chunked_array([pa.array(["0.5", "2", "-1e-3"])]), [], "regression", data)
    assert numbers.equals(pa.array([0.5, 2, -1e-3], pa.float32()))
    hot = encode_labels(pa.array([["b"], [], ["a", "b", "b"]]), ["a", "b"], "multi-label", data)
    assert hot.equals(pa.array([[0, 1], [0, 0], [1, 1]], pa.list_(pa.float32())))
    assert len(encode_labels(pa.chunked_array([], pa.string()), ["a"], "text-classification", data)) == 0


def test_encoding_refuses_an_unknown_label() -> None:
    with pytest.raises(UserError, match="'c' is not among the 2 known classes"):
        encode_labels(pa.array(["a", "c"]), ["a", "b"], "text-classification", Config().data)
    with pytest.raises(UserError, match="None is not among"):
        encode_labels(pa.array(["a", None]), ["a", "b"], "text-classification", Config().data)


# Regression and multi-label


def test_regression_labels_are_numbers(write: Write) -> None:
    write("train.csv", "text,label\na,1.5\nb,-2\nc,1e3\n")
    facts = inspect(config("regression"))
    assert (facts.labels, facts.label_type, facts.label_counts) == ([], "float", {})
    assert ids(config("regression"), facts) == [1.5, -2.0, 1000.0]
    write("train.csv", "")
    write("train.jsonl", labelled(2**60 + 1, -1))
    assert ids(config("regression"), inspect(config("regression"))) == [2.0**60, -1.0]
    write("train.jsonl", labelled(1, 2.5, -1))
    assert ids(config("regression"), inspect(config("regression"))) == [1.0, 2.5, -1.0]


@pytest.mark.parametrize(
    ("cells", "row", "words"),
    [
        (["1", "two"], 2, "'two'; regression needs a number such as 1.5"),
        (["1", ""], 2, "''; regression needs a number"),
        (["1", "1,5"], 2, "'1,5'; regression needs a number"),
        (["nan", "1"], 1, "nan; regression needs a finite number"),
        (["1", "-inf"], 2, "-inf; regression needs a finite number"),
        (["1", "1e39"], 2, "1e+39; regression needs a finite number"),
    ],
)
def test_regression_refuses_what_is_no_finite_number(write: Write, cells: list[str], row: int, words: str) -> None:
    write("train.csv", "text,label\n" + "".join(f't,"{cell}"\n' for cell in cells))
    (found,) = problems(config("regression"))
    assert f"train.csv row {row}: label column 'label' has {words}" in found


def test_regression_tells_all_that_is_no_finite_number_at_once(write: Write) -> None:
    write("train.csv", "text,label\na,1\nb,two\nc,nan\nd,1e39\n")
    assert problems(config("regression")) == [
        "data.train: train.csv row 2: label column 'label' has 'two'; regression needs a number such as 1.5",
        "data.train: train.csv row 3: label column 'label' has nan; regression needs a finite number (2 such rows)",
    ]


def test_regression_refuses_typed_texts_and_booleans(write: Write) -> None:
    write("train.jsonl", labelled(1.5, "2.5", True))
    assert [problem[:80] for problem in problems(config("regression"))] == [
        "data.train: train.jsonl row 2: label column 'label' has the string '2.5'; regres",
        "data.train: train.jsonl row 3: label column 'label' has the boolean True; regres",
    ]


def test_multi_label_lists_and_joined_texts_give_one_mapping(write: Write) -> None:
    write("train.csv", "text,label\nx,b|a\ny,\nz, c | b\n")
    write("train.jsonl", labelled(["a"], [], ["c", "b"]))
    write("train.parquet", pa.table({"text": ["x"], "label": pa.array([["b"]], pa.large_list(pa.string()))}))
    facts = inspect(config("multi-label"))
    assert facts.labels == ["a", "b", "c"]
    assert facts.label_counts == {"train": {"a": 2, "b": 4, "c": 2}}
    assert ids(config("multi-label"), facts) == [
        [1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 0]
    ]  # fmt: skip


def test_multi_label_numbers_are_classes_by_value(write: Write) -> None:
    write("train.csv", "text,label\nx,10;2\n")
    write("train.jsonl", labelled([2], [10, 9]))
    facts = inspect(config("multi-label", label_separator=";"))
    assert facts.labels == ["2", "9", "10"]
    assert ids(config("multi-label", label_separator=";"), facts) == [[1, 0, 1], [1, 0, 0], [0, 1, 1]]


def test_a_label_that_a_list_has_twice_is_one_of_that_row(write: Write) -> None:
    write("train.csv", "text,label\nx,b|b|a\ny,b\n")
    write("train.jsonl", labelled(["a", "a"], ["b"]))
    facts = inspect(config("multi-label"))
    assert facts.label_counts == {"train": {"a": 2, "b": 3}}
    assert ids(config("multi-label"), facts) == [[1, 1], [0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize("on", [1, 1.0, True])
def test_lists_with_a_place_for_each_class_are_no_names(write: Write, on: Any) -> None:
    off = type(on)(0)
    write("train.jsonl", labelled([on, off], [off, on], [on, on]))
    (found,) = problems(config("multi-label"))
    assert found.startswith("data.train: train.jsonl row 3: the list has a place for each class; multi-label needs")
    write("train.jsonl", labelled([on], [off, on], []))  # of two classes that are called so
    assert ids(config("multi-label"), inspect(config("multi-label"))) == [[0, 1], [1, 1], [0, 0]]


def test_a_number_that_a_list_has_twice_is_no_place_while_the_classes_are_not_known(write: Write) -> None:
    write("test.jsonl", labelled([5, 5], [7]))
    (found,) = problems(config("multi-label", validation="test.jsonl"))
    assert found == "data.train: train.*: no file matches"


def test_multi_label_problems_name_the_row_of_the_list(write: Write) -> None:
    write("train.jsonl", labelled(["a"], ["b", "c"]))
    write("test.jsonl", labelled([], ["a"], ["b", "d"], None))
    found = problems(config("multi-label", validation="test.jsonl"))
    assert found[0].startswith("data.validation: test.jsonl row 4: label column 'label' is null")
    assert found[1].startswith("data.validation: test.jsonl row 3: label 'd' is out of range: not among the 3 classes")
    write("train.jsonl", labelled(["a"], [None, "b"]))
    assert problems(config("multi-label")) == [
        "data.train: train.jsonl row 2: a label in the list is null; leave it out"
    ]
    hidden = pa.array([["a", "b"], None, ["b", None]], pa.list_(pa.string(), 2))  # with two places behind the null too
    write("train.jsonl", "")
    write("train.parquet", pa.table({"text": ["x", "y", "z"], "label": hidden}))
    assert [problem.partition(": ")[2] for problem in problems(config("multi-label"))] == [
        "train.parquet row 2: label column 'label' is null; each row needs a label",
        "train.parquet row 3: a label in the list is null; leave it out",
    ]
    Path("train.parquet").unlink()
    write("train.jsonl", labelled([], []))
    assert problems(config("multi-label")) == ["data.train: no label in column 'label'; multi-label needs 1 or more"]
    write("train.jsonl", labelled(1, 2))
    assert "has the number 1; multi-label needs a list of class names" in problems(config("multi-label"))[0]
