"""What is known, and what is refused, before any worker starts."""

import json
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import Config, Task
from pipeline.data.files import read
from pipeline.data.inspect import Facts, encode_labels, inspect
from pipeline.errors import UserError

Write = Callable[[str, Any], Path]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes text as it is, rows of dicts as JSONL or Parquet by the suffix."""
    monkeypatch.chdir(tmp_path)

    def to(name: str, content: Any) -> Path:
        path = tmp_path / name
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, str):
            path.write_text(content, newline="")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        return path

    return to


def config(task: Task = "text-classification", workers: int = 1, pair: str | None = None, **data: Any) -> Config:
    columns = {"text": "text", "text_pair": pair, "label": "label"}
    return Config.model_validate(
        {
            "model": {"task": task},
            "scaling": {"workers": workers},
            "data": {"train": "train.*", "validation": None, "columns": columns, **data},
        }
    )


def problems(config: Config) -> list[str]:
    with pytest.raises(UserError) as caught:
        inspect(config)
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def labelled(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]


def ids(config: Config, facts: Facts, split: str = "train") -> list[Any]:
    """Encoded labels of a split, by way of the reader."""
    return [
        value
        for file in facts.files[split]
        for table in read(file, ["label"], config.data, config.storage, 3)
        for value in encode_labels(table["label"], facts.labels, config.model.task, config.data).to_pylist()
    ]


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


# Refused labels


def test_mixed_types_are_refused_naming_both_files_and_rows(write: Write) -> None:
    write("train-a.jsonl", labelled(0, 1, 0))
    write("train-b.jsonl", labelled("0", "1"))
    found = problems(config(train="train-*.jsonl"))
    assert found == [
        "data.train: train-b.jsonl row 1: label '0' is a string, but train-a.jsonl row 1 has the number 0; use one type"
    ]


def test_mixed_types_within_a_file_are_refused_with_the_row(write: Write) -> None:
    write("train.jsonl", labelled(0, 1, "1", 0, True))
    assert problems(config()) == [
        "data.train: train.jsonl row 3: label '1' is a string, but train.jsonl row 1 has the number 0; use one type",
        "data.train: train.jsonl row 5: label True is a boolean, but train.jsonl row 1 has the number 0; use one type",
    ]


def test_mixed_types_between_the_splits_are_refused(write: Write) -> None:
    write("train.jsonl", labelled(0, 1))
    write("test.parquet", pa.table({"text": ["a"], "label": ["0"]}))
    (found,) = problems(config(validation="test.parquet"))
    assert found.startswith("data.validation: test.parquet row 1: label '0' is a string, but train.jsonl row 1")


def test_csv_words_beside_numbers_are_refused(write: Write) -> None:
    write("train.jsonl", labelled(0, 1))
    write("train.csv", "text,label\na,0\nb,spam\nc,ham\n")
    found = problems(config())
    assert found[0].startswith(
        "data.train: train.csv row 2: label 'spam' is no number, but train.jsonl row 1 has the nu"
    )


def test_many_changes_of_type_end_the_reading(write: Write) -> None:
    write("train.jsonl", labelled(*([0, "0"] * 20_000)))
    began = time.process_time()
    assert len(problems(config())) == 1
    assert time.process_time() - began < 5


def test_null_text_and_label_are_refused_with_file_and_row_together(write: Write) -> None:
    rows = labelled("a", "b", None, None, "a")
    rows[1]["text"] = None
    del rows[4]["text"]
    write("train.jsonl", rows)
    assert problems(config()) == [
        "data.train: train.jsonl row 2: text column 'text' is null; give a text, or leave the row out (2 such rows)",
        "data.train: train.jsonl row 3: label column 'label' is null; each row needs a label (2 such rows)",
    ]


def test_null_rows_are_numbered_over_the_whole_parquet_file(write: Write) -> None:
    labels: list[str | None] = ["a", "b"] * 50_000
    labels[70_000] = None
    write("train.parquet", pa.table({"text": ["x"] * 100_000, "label": labels}))
    assert problems(config())[0].startswith("data.train: train.parquet row 70001: label column 'label' is null")


def test_a_column_of_nulls_in_one_file_is_refused(write: Write) -> None:
    write("train-a.parquet", pa.table({"text": ["x", "y"], "label": ["a", "b"]}))
    write("train-b.parquet", pa.table({"text": ["x", "y"], "label": pa.nulls(2)}))
    found = problems(config(train="train-*"))
    assert found == [
        "data.train: train-b.parquet row 1: label column 'label' is null; each row needs a label (2 such rows)"
    ]


def test_an_empty_label_cell_is_refused_and_an_empty_text_counted(write: Write) -> None:
    write("train.csv", 'text,label\nx,a\n,b\n"",b\n')
    assert inspect(config()).empty_texts == {"train": 2}
    write("train.csv", "text,label\nx,1\ny,2\nz,\nw,\n")
    assert problems(config()) == ["data.train: train.csv row 3: label is empty; each row needs a label (2 such rows)"]


def test_a_missing_label_cell_in_a_csv_of_numbers_leaves_the_others_whole(write: Write) -> None:
    write("train.csv", "text,label\nx,1\ny,10\nz,\n")
    assert problems(config()) == ["data.train: train.csv row 3: label is empty; each row needs a label"]


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "train.parquet"])
@pytest.mark.parametrize("marker", [-1, -1.0, -100])
def test_minus_one_as_no_label_is_refused(write: Write, name: str, marker: float) -> None:
    labels = [0, 1, marker, marker]
    if name.endswith("csv"):
        write(name, "text,label\n" + "".join(f"t,{label}\n" for label in labels))
    elif name.endswith("jsonl"):
        write(name, labelled(*labels))
    else:
        write(name, pa.table({"text": ["t"] * 4, "label": pa.array([float(label) for label in labels])}))
    (found,) = problems(config())
    assert found == (
        f"data.train: {name} row 3: label {int(marker)} marks rows without a label; leave them out "
        "(if it is a class, write the labels as texts) (2 such rows)"
    )


def test_minus_one_in_validation_only_is_refused_as_no_label(write: Write) -> None:
    write("train.jsonl", labelled(0, 1))
    write("test.jsonl", labelled(-1, -1))
    (found,) = problems(config(validation="test.jsonl"))
    assert "test.jsonl row 1: label -1 marks rows without a label" in found


def test_nan_is_a_missing_label(write: Write) -> None:
    write("train.parquet", pa.table({"text": ["a", "b", "c"], "label": [1.0, float("nan"), 0.0]}))
    assert problems(config()) == ["data.train: train.parquet row 2: label is empty; each row needs a label"]


def test_a_fraction_is_no_class(write: Write) -> None:
    write("train.jsonl", labelled(0, 0.5, 1))
    (found,) = problems(config())
    assert found.startswith("data.train: train.jsonl row 2: label 0.5 is no whole number, so no class; for numbers set")


def test_a_class_only_in_validation_is_refused(write: Write) -> None:
    write("train.csv", "text,label\na,card_lost\nb,top_up\n")
    write("test.csv", "text,label\na,top_up\nb,card_list\nc,card_list\n")
    assert problems(config(validation="test.csv")) == [
        (
            "data.validation: test.csv row 2: label 'card_list' is out of range: not among the 2 classes of "
            "data.train, such as 'card_lost' (2 such rows)"
        )
    ]


def test_one_class_is_refused(write: Write) -> None:
    write("train.csv", "text,label\na,x\nb,x\n")
    assert problems(config()) == [
        "data.train: only the class 'x' in column 'label'; text-classification needs 2 or more"
    ]


@pytest.mark.parametrize(
    ("label", "kind"),
    [(pa.array([b"x"]), "binary"), (pa.array([1], pa.date32()), r"date32\[day\]"), (pa.array([["x"]]), "list")],
)
def test_labels_of_other_types_are_refused(write: Write, label: pa.Array, kind: str) -> None:
    write("train.parquet", pa.table({"text": ["a"], "label": label}))
    with pytest.raises(
        UserError, match=rf"train.parquet row 1: label column 'label' has the {kind}.*text-classification needs"
    ):
        inspect(config())


# Texts


def test_texts_must_be_strings(write: Write) -> None:
    write("train-a.parquet", pa.table({"text": [1, 2], "label": ["a", "b"]}))
    write("train-b.jsonl", [{"text": "x", "label": "a"}, {"text": 7, "label": "b"}])
    assert problems(config(train="train-*")) == [
        (
            "data.train: train-a.parquet row 1: text column 'text' has the number 1; a text column holds strings only "
            "(2 such rows)"
        ),
        "data.train: train-b.jsonl row 2: text column 'text' has the number 7; a text column holds strings only",
    ]


def test_both_texts_of_a_pair_are_checked(write: Write) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "x", "second": None, "label": "a"},
        {"text": "", "second": "y", "label": "b"},
    ]
    write("train.jsonl", rows)
    assert "train.jsonl row 1: text column 'second' is null" in problems(config(pair="second"))[0]
    rows[0]["second"] = ""
    write("train.jsonl", rows)
    assert inspect(config(pair="second")).empty_texts == {"train": 2}


def test_missing_columns_are_refused_listing_those_found(write: Write) -> None:
    write("train.csv", "sentence,category\na,b\n")
    write("test.jsonl", [{"sentence": "a", "label": "b"}])
    assert problems(config(validation="test.jsonl")) == [
        "data.train: train.csv: no column 'text'; the file has 'sentence', 'category'",
        "data.train: train.csv: no column 'label'; the file has 'sentence', 'category'",
        "data.validation: test.jsonl: no column 'text'; the file has 'sentence', 'label'",
    ]


# Rows


def test_one_empty_file_among_many_is_accepted(write: Write) -> None:
    write("train-a.csv", "")
    write("train-b.csv", "text,label\n")
    write("train-c.jsonl", "")
    write("train-d.csv", "text,label\nx,a\ny,b\n")
    write("train-e.parquet", pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}))
    facts = inspect(config(train="train-*"))
    assert facts.rows_per_file == {"train": [0, 0, 0, 2, 0]}


@pytest.mark.parametrize("content", ["", "text,label\n"])
def test_an_empty_split_is_refused(write: Write, content: str) -> None:
    write("train.csv", "text,label\nx,a\ny,b\n")
    write("test.csv", content)
    assert problems(config(validation="test.csv")) == ["data.validation: no rows in test.csv; at least one is needed"]
    assert "data.train: no rows in test.csv; at least one is needed" in problems(config(train="test.csv"))


def test_fewer_rows_than_workers_are_refused(write: Write) -> None:
    write("train.csv", "text,label\nx,a\ny,b\nz,b\n")
    assert inspect(config(workers=3)).rows == {"train": 3}
    assert problems(config(workers=4)) == ["data.train: 3 rows for scaling.workers 4; each worker needs one or more"]


def test_all_problems_of_all_files_are_reported_together(write: Write) -> None:
    write("train-a.csv", b"text,label\n\xff,a\n".decode("latin-1"))
    write("train-b.csv", "text,label\na\n")
    write("train-c.jsonl", [{"text": None, "label": "a"}])
    (Path("train-a.csv")).write_bytes(b"text,label\n\xff,a\n")
    found = problems(config(train="train-*", validation="nix.csv"))
    assert [problem.split(":")[1].split()[0] for problem in found] == [
        "train-a.csv",
        "train-b.csv",
        "train-c.jsonl",
        "nix.csv",
    ]
    assert found[3].startswith("data.validation: nix.csv: no such file or folder")


def test_the_number_of_problems_is_bounded(write: Write) -> None:
    write("train.csv", "text,label\na,x\nb,y\n")
    write("test.csv", "text,label\n" + "".join(f"a,{number}\n" for number in range(100)))
    found = problems(config(validation="test.csv"))
    assert len(found) == 31
    assert found[-1] == "and 70 more problems"


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
    write("train.jsonl", labelled([], []))
    assert problems(config("multi-label")) == ["data.train: no label in column 'label'; multi-label needs 1 or more"]
    write("train.jsonl", labelled(1, 2))
    assert "has the number 1; multi-label needs a list of class names" in problems(config("multi-label"))[0]
