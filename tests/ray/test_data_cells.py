"""Data as people bring them: what both engines make of them, side by side, on one local Ray without any training."""

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from pipeline import cluster
from pipeline.config import Config
from pipeline.data import ray_engine, torch_engine
from pipeline.data.engine import total_steps, train_plan, validation_plan
from pipeline.data.inspect import Facts, inspect
from pipeline.data.plan import FILL, Plan
from pipeline.model import load_tokenizer
from tests.hub import serving

pytestmark = pytest.mark.timeout(600)
Files = dict[str, bytes | pa.Table]
TEXTS = ["where is my card", "top up", "card"]


def job(**data: Any) -> Config:
    columns = {"text": "text", "label": "label"}
    return Config.model_validate({"data": {"validation": None, "columns": columns, **data}, "scaling": {"workers": 1}})


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One local Ray for all tests here, started with a hub on loopback as its hub."""
    from huggingface_hub import constants

    folder = tmp_path_factory.mktemp("caches")
    files = {"train.csv": b"text,label\nwhere is my card,b\ntop up,a\ncard,b\n"}
    with serving(files, {}) as hub, pytest.MonkeyPatch.context() as patch:
        template = hub + "/{repo_id}/resolve/{revision}/{filename}"  # what the library makes of HF_ENDPOINT at import
        for name, value in (
            ("ENDPOINT", hub),
            ("HF_HUB_CACHE", str(folder)),
            ("HUGGINGFACE_CO_URL_TEMPLATE", template),
        ):
            patch.setattr(constants, name, value)
        environ = {"HF_ENDPOINT": hub, "HF_HUB_CACHE": str(folder), "PIPELINE_CACHE_DIR": str(folder)}
        with mock.patch.dict(os.environ, environ), cluster.connected(job()):
            yield


def table(labels: pa.Array, **more: Any) -> pa.Table:
    return pa.table({"text": TEXTS[: len(labels)], "label": labels, **more})


def jsonl(*labels: object) -> bytes:
    rows = zip(TEXTS, labels, strict=False)
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows).encode()


LEFT_OVER = {
    "list": pa.array([[1], None, [2, 3]]),
    "struct": pa.array([{"a": 1}, None, {"a": 2}]),
    "decimal": pa.array([Decimal("1.5"), None, Decimal(2)]),
    "dictionary": pa.array(["x", None, "y"]).dictionary_encode(),
    "binary": pa.array([b"\xff", None, b""]),
    "time": pa.array([0, None, 1], pa.timestamp("us", "UTC")),
    "null": pa.nulls(3),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "text.other": pa.array(["not", "this", "one"]),
}
WRITTEN = (
    '\ufefftext;label;id\r\n"two\r\nlines; and ""quotes""";b;1\r\nnull;a;2\r\nNA;b;3\r\nNone;a;4\r\n;b;5\r\n"";a;6\r\n'
)

# Name: files, settings, the texts in order, the class of each row.
CELLS: dict[str, tuple[Files, dict[str, Any], list[str], Sequence[float]]] = {
    "strings": ({"train.parquet": table(pa.array(["b", "a", "b"]))}, {}, TEXTS, [1, 0, 1]),
    "booleans": ({"train.parquet": table(pa.array([True, False, True]))}, {}, TEXTS, [1, 0, 1]),
    "integers 1 and 2": ({"train.jsonl": jsonl(2, 1, 2)}, {}, TEXTS, [1, 0, 1]),
    "whole floats": ({"train.parquet": table(pa.array([10.0, 9.0, 10.0]))}, {}, TEXTS, [1, 0, 1]),
    "decimals": ({"train.parquet": table(pa.array([Decimal("10.0"), Decimal(9), Decimal(10)]))}, {}, TEXTS, [1, 0, 1]),
    "dictionary": ({"train.parquet": table(pa.array(["b", "a", "b"]).dictionary_encode())}, {}, TEXTS, [1, 0, 1]),
    "left-over columns": ({"train.parquet": table(pa.array(["b", "a", "b"]), **LEFT_OVER)}, {}, TEXTS, [1, 0, 1]),
    "CSV beside typed files": (
        {"train-a.csv": b"text,label\nwhere is my card,10\ntop up,9.0\n", "train-b.jsonl": jsonl(10, 9)},
        {}, TEXTS[:2] * 2, [1, 0, 1, 0],
    ),
    "CSV as people write it": (
        {"train.csv": WRITTEN.encode()}, {},
        ['two\r\nlines; and "quotes"', "null", "NA", "None", "", ""], [1, 0, 1, 0, 1, 0],
    ),
    "tabs in Latin-1": (
        {"train.tsv": "text\tlabel\nschön\tb\ncafé\ta\n".encode("latin-1")}, {"encoding": "latin-1"},
        ["schön", "café"], [1, 0],
    ),
    "empty files among others": (
        {
            "train-a.csv": b"", "train-b.csv": b"text,label\n", "train-c.jsonl": jsonl("b", "a"),
            "train-d.parquet": table(pa.array([], pa.string())), "train-e.csv.gz": gzip.compress(b""),
        },
        {}, TEXTS[:2], [1, 0],
    ),
    "five thousand words": (
        {"train.csv": b"text,label\n" + b"word " * 5000 + b",b\nshort,a\n" + b"word " * 126 + b",b\n"}, {},
        ["word " * 5000, "short", "word " * 126], [1, 0, 1],
    ),
    "numbers": (
        {"train.csv": b"text,label\ntop up,1.5\ncard,-2\n"}, {"task": "regression"}, ["top up", "card"], [1.5, -2],
    ),
    "hub": ({}, {"train": "hub:owner/rows"}, TEXTS, [1, 0, 1]),
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Config, Facts]]:
    monkeypatch.chdir(tmp_path)

    def make(files: Files, settings: dict[str, Any]) -> tuple[Config, Facts]:
        for name, content in files.items():
            if isinstance(content, bytes):
                (tmp_path / name).write_bytes(content)
            else:
                pq.write_table(content, tmp_path / name, row_group_size=2)
        task = settings.get("task", "text-classification")
        data = {key: value for key, value in settings.items() if key != "task"}
        config = job(**{"train": "train*", **data})
        config = config.model_copy(update={"model": config.model.model_copy(update={"task": task})})
        return config, inspect(config)

    return make


@pytest.mark.parametrize("name", CELLS)
def test_both_engines_give_the_texts_and_labels_as_written(
    name: str, made: Callable[..., tuple[Config, Facts]]
) -> None:
    files, settings, texts, labels = CELLS[name]
    config, facts = made(files, settings)
    rows = torch_engine.tokenised(config, facts, "train").with_format(None)
    tokens = ray_engine.tokenise(config, facts, "train")
    streamed = pa.concat_tables(ray.get(tokens.blocks)).to_pylist()
    expected = load_tokenizer(config.model, config.storage)(texts, truncation=True, max_length=128)["input_ids"]
    for found in (list(rows), streamed):
        assert [row["input_ids"] for row in found] == expected
        assert [row["label"] for row in found] == labels
    whole = [len(text.split()) + 2 for text in texts]
    assert tokens.index.truncated == torch_engine.index_of(rows).truncated == sum(length > 128 for length in whole)


@pytest.mark.parametrize(("rows", "workers", "batch"), [(7, 2, 4), (1, 2, 8), (3, 4, 8), (5, 3, 2)])
def test_rays_streams_deal_every_row_once_and_as_many_batches_to_each_worker(
    made: Callable[..., tuple[Config, Facts]], rows: int, workers: int, batch: int
) -> None:
    content = b"text,label\n" + b"".join(
        b"%s,%s\n" % (b"w " * (number + 1), b"ab"[number % 2 :][:1]) for number in range(9)
    )
    config, facts = made({"train.csv": content}, {})
    training = {**config.training.model_dump(), "batch_size_per_worker": batch, "eval_batch_size_per_worker": batch}
    config = Config.model_validate({**config.model_dump(), "training": training})
    tokens = ray_engine.tokenise(config, facts, "train")
    index = tokens.index
    few = type(index)(index.lengths[:rows], index.weights[:rows], 0)
    plan = validation_plan(config, few, workers)
    assert plan is not None
    for shuffled, last in ((train_plan(config, few, workers), None), (plan, plan.steps_per_epoch)):
        steps = total_steps(config, shuffled) if last is None else last
        dealt = _dealt(tokens, shuffled, steps)
        assert [len(part) for part in dealt] == [len(dealt[0])] * workers
        for rank, part in enumerate(dealt):
            wanted = [shuffled.rank_rows(step, rank).tolist() for step in range(steps)]
            assert part == [row for step in wanted for row in step]
        used = [row for part in dealt for row in part if row != FILL]
        assert sorted(used) == sorted([*range(rows)] * (steps // shuffled.steps_per_epoch))


def _dealt(tokens: ray_engine.Tokens, plan: Plan, steps: int) -> list[list[int]]:
    """Row numbers that each worker gets."""
    shards = ray_engine.stream(tokens, plan, 0, steps).streaming_split(plan.shape.workers, equal=True)
    dealt: list[list[int]] = [[] for _ in shards]

    def take(rank: int, shard: Any) -> None:
        for batch in shard.iter_batches(batch_size=plan.shape.micro_rows, batch_format="pyarrow"):
            dealt[rank].extend(np.asarray(batch["row"]).tolist())

    threads = [threading.Thread(target=take, args=item) for item in enumerate(shards)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a worker's stream did not end within two minutes"
    return dealt
