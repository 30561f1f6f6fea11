"""docs/migration.md: the configuration and the function under "new", on bare processes; tests/ray has the rest."""

import ast
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import load, loads
from tests.gloo.test_custom import own
from tests.gloo.test_numbers import train
from tests.gloo.world import World
from tests.migration import REPOSITORY, TEXT, blocks

pytestmark = pytest.mark.timeout(900)
Worlds = Callable[[int], World]
Job = Callable[..., Any]


def test_the_configuration_says_what_the_old_call_said_and_trains(world: Worlds, job: Job) -> None:
    (text,) = blocks("new: configuration")
    config = loads(text, "pairs.yaml")
    assert (config.training.learning_rate, config.training.epochs, config.training.batch_size_per_worker) == (
        2e-5,
        3,
        16,
    )
    assert (config.run.max_failures, config.checkpoint.keep, config.metrics.best) == (3, 2, "accuracy")
    assert (config.storage.path, config.scaling.workers) == ("s3://bucket/runs", 2)
    small, facts = job(
        data={"columns": config.data.columns.model_dump(), "engine": "torch"},
        training={**config.training.model_dump(), "epochs": 1},
        metrics=config.metrics.model_dump(),
    )
    result = train(world(1), (small, facts))[0]
    assert 0 <= result["history"][-1]["eval_f1"] <= 1
    assert [line["step"] for line in result["steps"]] == list(range(1, 15))  # 211 rows by 16


def test_the_function_trains_with_every_row_used_once_an_epoch(world: Worlds, job: Job, tmp_path: Path) -> None:
    (text,) = blocks("new: function")
    (tmp_path / "my_training.py").write_text(text, encoding="utf-8")
    made = job(run={"train_func": "my_training:train"}, training={"global_batch_size": 24, "epochs": 2})
    result = own(world(1), made, module_in=str(tmp_path))[0]
    assert sorted(result["rows"]) == sorted([*range(211), *range(211)])
    assert [entry["eval_rows"] for entry in result["history"]] == [101, 101]
    assert [line["step"] for line in result["steps"]] == list(range(1, 19))


def test_the_commands_are_understood(tmp_path: Path) -> None:
    (text,) = blocks("new: configuration")
    (tmp_path / "pairs.yaml").write_text(text, encoding="utf-8")
    names = []
    for command in blocks("new: command"):
        program, verb, option, file, *overrides = shlex.split(command)
        assert (program, verb, option) == ("pipeline", "train", "-c")
        found = REPOSITORY / file if (REPOSITORY / file).exists() else tmp_path / file
        names.append(load(str(found), overrides, {}).run.name)
    assert names == ["pairs", "own-loop-ray", "own-loop-torch"]


def test_old_snippets_are_python() -> None:
    for (block,) in (blocks("old: pairs.py"), blocks("old: my_loop.py")):
        assert ast.parse(block).body


def test_each_name_of_the_context_in_the_tables_exists() -> None:
    from pipeline.custom import Context

    attributes = {"accelerator", "config", "train", "validation", "total_steps", "extra"}  # set when it is made
    named = set(re.findall(r"context\.([a-z_]+)", TEXT))
    assert named <= attributes | set(dir(Context))
    assert {"prepare", "epochs", "accumulate", "gather", "log", "evaluated"} <= named
