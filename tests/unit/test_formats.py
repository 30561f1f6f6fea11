"""One table in every format that people have: read the same, tokenised the same."""

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from pipeline.config import Config
from pipeline.data.files import find, read
from pipeline.data.inspect import Facts, inspect
from pipeline.errors import UserError

ROWS = [
    {"text": 'two\nlines, "quoted"', "label": "card"},
    {"text": "null", "label": "NA"},
    {"text": "", "label": "card"},
    {"text": "schön; \ttab", "label": "top up"},
    {"text": "last", "label": "NA"},
]


def as_csv(delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["text", "label", "left over"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows({**row, "left over": number} for number, row in enumerate(ROWS))
    return text.getvalue().encode()


def as_jsonl() -> bytes:
    rows = ({**row, "left over": {"any": [number]}} for number, row in enumerate(ROWS))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_table() -> pa.Table:
    table = pa.Table.from_pylist(ROWS)
    return table.append_column("left over", pa.array([[1], None, [], [2, 3], [4]], pa.large_list(pa.decimal128(9, 2))))


def write(content: bytes) -> Callable[[Path], None]:
    def to(path: Path) -> None:
        path.write_bytes(content)

    return to


def parquet(path: Path) -> None:
    pq.write_table(as_table(), path, row_group_size=2)


def feather(path: Path) -> None:
    pyarrow.feather.write_feather(as_table(), path, compression="zstd", chunksize=2)


def stream(path: Path) -> None:
    with pa.ipc.new_stream(str(path), as_table().schema) as writer:
        writer.write_table(as_table(), max_chunksize=2)


def saved(path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).save_to_disk(str(path), num_shards=2)
    # What a later `map()` leaves behind.
    stream(path / "cache-0123456789abcdef.arrow")


def saved_with_splits(path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list(ROWS)
    DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(str(path))


def folder(path: Path) -> None:
    path.mkdir()
    for number, row in enumerate(ROWS):
        (path / f"{number}.jsonl").write_text(json.dumps(row))
    (path / "README.md").write_text("what it is")


FORMATS: dict[str, Callable[[Path], None]] = {
    "train.csv": write(as_csv()),
    "train.tsv": write(as_csv("\t")),
    "semicolons.csv": write(as_csv(";")),
    "mark.csv": write(b"\xef\xbb\xbf" + as_csv()),
    "train.csv.gz": write(gzip.compress(as_csv())),
    "train.csv.bz2": write(bz2.compress(as_csv())),
    "train.csv.zst": write(pa.compress(as_csv(), "zstd", asbytes=True)),
    "train.jsonl": write(as_jsonl()),
    "train.jsonl.gz": write(gzip.compress(as_jsonl())),
    "train.ndjson.bz2": write(bz2.compress(as_jsonl())),
    "train.json.zst": write(pa.compress(as_jsonl(), "zstd", asbytes=True)),
    "train.parquet": parquet,
    "train.feather": feather,
    "train.arrow": stream,
    "saved": saved,
    "splits": saved_with_splits,
    "folder": folder,
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the table once for each format."""
    root = tmp_path_factory.mktemp("formats")
    for name, make in FORMATS.items():
        make(root / name)
    return root


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_CACHE_DIR", str(tmp_path))


def job(path: Path, **data: Any) -> Config:
    columns = {"text": "text", "label": "label"}
    return Config.model_validate(
        {"data": {"train": str(path), "validation": None, "columns": columns, "engine": "torch", **data}}
    )


def rows_of(config: Config, facts: Facts) -> Iterator[dict[str, Any]]:
    for file in facts.files["train"]:
        for table in read(file, ["text", "label"], config.data, config.storage, 3):
            yield from table.to_pylist()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows_labels_and_counts(made: Path, name: str) -> None:
    config = job(made / name)
    facts = inspect(config)
    assert list(rows_of(config, facts)) == ROWS
    assert (facts.labels, facts.label_type) == (["NA", "card", "top up"], "string")
    assert facts.label_counts == {"train": {"NA": 2, "card": 2, "top up": 1}}
    assert facts.empty_texts == {"train": 1}


def test_every_format_gives_the_same_tokens(made: Path) -> None:
    from pipeline.data.torch_engine import tokenised

    found = {}
    for name in FORMATS:
        config = job(made / name)
        table = tokenised(config, inspect(config), "train").with_format(None)
        found[name] = [(row["input_ids"], row["label"], row["truncated"]) for row in table]
    expected = found["train.csv"]
    assert [label for _, label, _ in expected] == [1, 0, 1, 2, 0]
    assert [len(ids) for ids, _, _ in expected][2] == 2  # nothing but the two special tokens
    assert {name for name, rows in found.items() if rows != expected} == set()


# Folders of save_to_disk


def test_a_saved_dict_gives_each_split_to_the_field_that_is_named_after_it(made: Path, tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    splits = DatasetDict({"train": Dataset.from_list(ROWS), "validation": Dataset.from_list(ROWS[:2])})
    splits.save_to_disk(str(tmp_path / "both"))
    facts = inspect(job(tmp_path / "both", validation=str(tmp_path / "both")))
    assert facts.rows == {"train": 5, "validation": 2}
    with pytest.raises(UserError) as caught:
        inspect(job(made / "train.csv", validation=str(made / "splits")))
    assert caught.value.problems == [
        (
            f"data.validation: {made}/splits: holds the splits 'train', 'test', and not 'validation'; "
            "give the folder of one of them"
        )
    ]
    assert inspect(job(made / "train.csv", validation=str(made / "splits" / "test"))).rows["validation"] == 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "data-00001-of-00002.arrow").unlink(), "data-00001-of-00002.arrow is missing, which"),
        (lambda folder: (folder / "state.json").write_text("{"), "state.json: is not as save_to_disk writes it"),
        (
            lambda folder: (folder / "data-00001-of-00002.arrow").write_bytes(b"\xff\xff\xff\xff\x10"),
            "data-00001-of-00002.arrow: cannot be read as arrow",
        ),
    ],
    ids=["missing", "state", "damaged"],
)
def test_a_damaged_saved_folder_is_refused_naming_the_file(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    saved(tmp_path / "saved")
    spoil(tmp_path / "saved")
    with pytest.raises(UserError) as caught:
        inspect(job(tmp_path / "saved"))
    (problem,) = caught.value.problems
    assert problem.startswith("data.train: ")
    assert words in problem


def test_class_labels_of_a_saved_data_set_keep_their_numbers(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("large_string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, 1]}, features=features).save_to_disk(
        str(tmp_path / "saved")
    )
    facts = inspect(job(tmp_path / "saved"))
    assert (facts.labels, facts.label_counts["train"]) == (["0", "1"], {"0": 1, "1": 2})


# Bytes that are not what their type says


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_columns_with_other_bytes_are_refused_with_the_row(tmp_path: Path, kind: pa.DataType) -> None:
    wide = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}[kind]
    texts = pa.array([b"good", b"sch\xf6n", b"c"], wide).view(kind)
    table = pa.table({"text": texts, "label": ["a", "b", "a"]})
    pq.write_table(table, tmp_path / "train.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "train.arrow")
    for name in ("train.parquet", "train.arrow"):
        with pytest.raises(UserError) as caught:
            inspect(job(tmp_path / name))
        (problem,) = caught.value.problems
        assert problem.endswith(f"{name}: row 2: column 'text' holds bytes that are not UTF-8; write it as text")


def test_only_the_asked_columns_of_an_arrow_file_are_read(tmp_path: Path) -> None:
    stream(tmp_path / "a.arrow")
    config = job(tmp_path / "a.arrow")
    (file,) = find(str(tmp_path / "a.arrow"), config.data, config.storage)
    tables = list(read(file, ["label", "text"], config.data, config.storage, 3))
    assert [table.column_names for table in tables] == [["label", "text"]] * 3
    with pytest.raises(UserError, match=r"a\.arrow: no column 'intent'; the file has 'text', 'label', 'left over'"):
        list(read(file, ["intent"], config.data, config.storage))
