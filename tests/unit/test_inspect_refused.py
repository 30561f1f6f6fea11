"""Tables that are refused before any worker starts, with file and row."""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.data.inspect import inspect
from pipeline.errors import UserError
from tests.unit.conftest import Write
from tests.unit.tables import config, labelled, problems

ROOT = Path(__file__).resolve().parents[2]


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
        "(if it is a class, give it a name in letters) (2 such rows)"
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
        "data.train: train.csv: no column 'text'; the file has 'sentence', 'category'; set data.columns.text",
        "data.train: train.csv: no column 'label'; the file has 'sentence', 'category'; set data.columns.label",
        "data.validation: test.jsonl: no column 'text'; the file has 'sentence', 'label'; set data.columns.text",
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


def test_whole_numbers_that_a_number_with_a_point_has_rounded_are_no_classes(write: Write) -> None:
    # Of two classes one would be made, or one that the workers do not find in their smaller tables.
    write("train.jsonl", labelled(2**53 + 1, 2**53, 1.0))
    (found,) = problems(config())
    assert "train.jsonl row 1: label 9007199254740992.0 is no whole number for certain" in found
    write("train.jsonl", labelled(2**53 + 1, 2**53, 1))
    assert inspect(config()).labels == ["1", str(2**53), str(2**53 + 1)]
    write("train.jsonl", labelled(float("inf"), 1))
    assert "row 1: label inf is no whole number, so no class" in problems(config())[0]
