"""Worlds of 1, 2 and 3 processes, and small real data for them."""

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config
from pipeline.data.inspect import Facts, inspect
from tests import llama
from tests.gloo.world import World

DATA = Path(__file__).parents[2] / "data" / "banking77"
# A BERT of the real vocabulary, small enough for hundreds of steps in seconds.
TINY = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
LABELS = ("card_arrival", "exchange_rate", "lost_or_stolen_card", "top_up_limits", "pin_blocked", "transfer_timing")


@pytest.fixture(scope="package")  # their processes hold gigabytes, which the tests after these need
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], World]]:
    scratch = str(tmp_path_factory.mktemp("worlds"))
    worlds: dict[int, World] = {}
    # Where evaluate copies a metric of the user's, which would otherwise stay in the home.
    os.environ["HF_MODULES_CACHE"] = str(tmp_path_factory.mktemp("modules"))

    def of(size: int) -> World:
        if size not in worlds or worlds[size].broken:
            worlds[size] = World(size, scratch)
        return worlds[size]

    yield of
    for started in worlds.values():
        started.close()


def _rows(name: str, every_class: bool) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if every_class or row["category"] in LABELS]


def _configured(values: dict[str, dict[str, object]], sections: dict[str, dict[str, object]]) -> tuple[Config, Facts]:
    """The values with those of `sections` over them, and the facts of the data."""
    merged = {name: {**values.get(name, {}), **sections.get(name, {})} for name in {*values, *sections}}
    config = Config.model_validate(merged)
    return config, inspect(config)


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Config, Facts]]:
    """A configuration on rows of six classes of Banking77 (all 77 for the whole test set), and its facts."""
    folder = tmp_path_factory.mktemp("rows")

    def make(rows: int = 211, eval_rows: int = 101, **sections: dict[str, object]) -> tuple[Config, Facts]:
        paths = {}
        for split, source, count in (("train", "train.csv", rows), ("validation", "test.csv", eval_rows)):
            found = _rows(source, every_class=eval_rows > 1000)
            # Every n-th row, so that all classes are there.
            chosen = [found[number * len(found) // count] for number in range(count)]
            paths[split] = folder / f"{split}-{count}.csv"
            with paths[split].open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, ["text", "category"])
                writer.writeheader()
                writer.writerows(chosen)
        values: dict[str, dict[str, object]] = {
            "model": {"config": TINY, "from_scratch": True},
            "data": {"engine": "torch", "train": str(paths["train"]), "validation": str(paths["validation"])},
            "training": {"epochs": 2, "learning_rate": 1e-3, "batch_size_per_worker": 8},
            "storage": {"path": str(folder)},
            "scaling": {"workers": 1},
        }
        return _configured(values, sections)

    return make


@pytest.fixture(scope="session")
def language(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Config, Facts]]:
    """A job on 211 texts of Banking77 with 43 for validation, and the facts of its data."""
    folder = tmp_path_factory.mktemp("language")
    model = llama.save(folder / "llama")
    paths = {
        "train": llama.write(folder / "train.jsonl", llama.rows("train.csv", 211)),
        "validation": llama.write(folder / "validation.jsonl", llama.rows("test.csv", 43)),
    }

    def make(**sections: dict[str, object]) -> tuple[Config, Facts]:
        values: dict[str, dict[str, object]] = {
            "model": {"path": model, "task": "causal-lm"},
            "data": {"engine": "torch", "max_length": 96, **paths},
            "training": {"epochs": 2, "learning_rate": 5e-3, "global_batch_size": 6},
            "storage": {"path": str(folder)},
            "scaling": {"workers": 1},
        }
        return _configured(values, sections)

    return make


@pytest.fixture
def configured(job: Callable[..., Any], tmp_path: Path) -> Callable[..., Config]:
    """Configurations of one job, 5 steps an epoch, in a folder of this test; arguments change sections."""

    def make(storage: Path = tmp_path / "runs", **sections: dict[str, object]) -> Config:
        defaults: dict[str, dict[str, object]] = {
            "training": {"epochs": 2, "global_batch_size": 24, "learning_rate": 1e-3},
            "run": {"name": "run"},
            "storage": {"path": str(storage)},
        }
        merged = {name: {**defaults.get(name, {}), **sections.get(name, {})} for name in {*defaults, *sections}}
        config: Config = job(rows=110, eval_rows=30, **merged)[0]
        return config

    return make
