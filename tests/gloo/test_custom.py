"""A train function of the user's own: the numbers of the built-in loop, resumable, refused where it is wrong."""

import difflib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.settings import load
from pipeline.strategy import files
from pipeline.train_func import resolve
from tests.gloo import cases
from tests.gloo.test_numbers import ABSOLUTE, RELATIVE, train
from tests.gloo.world import World
from tests.migration import save_bert

pytestmark = pytest.mark.timeout(900)
REPOSITORY = Path(__file__).parents[2]
Worlds = Callable[[int], World]
Job = Callable[..., Any]
TRAINING = {"global_batch_size": 24, "batch_size_per_worker": 5, "epochs": 2, "learning_rate": 1e-3}


def own(world: World, job: tuple[Any, Any], **more: Any) -> list[dict[str, Any]]:
    config, facts = job
    return world.run(cases.own, config=config.model_dump(mode="json"), facts=facts.to_json(), **more)


def address(name: str) -> dict[str, object]:
    return {"train_func": f"tests.gloo.own:{name}"}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_function_that_does_what_the_built_in_loop_does_gets_its_numbers(
    world: Worlds, job: Job, workers: int
) -> None:
    # Micro-batches of at most 5 of 24 rows: accumulated, and spread unevenly.
    built_in = train(world(workers), job(training=TRAINING))[0]
    results = own(world(workers), job(training=TRAINING, run=address("as_built_in")))
    for name in ("step", "epoch", "learning_rate", "padding_ratio"):
        assert [line[name] for line in results[0]["steps"]] == [line[name] for line in built_in["steps"]]
    for name in ("loss", "grad_norm"):
        found, expected = ([line[name] for line in lines] for lines in (results[0]["steps"], built_in["steps"]))
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=ABSOLUTE)
    assert sorted(row for result in results for row in result["rows"]) == sorted([*range(211), *range(211)])
    for found, expected in zip(results[0]["history"], built_in["history"], strict=True):
        assert (found["step"], found["eval_rows"]) == (expected["step"], expected["eval_rows"])
        assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=RELATIVE)
        assert found["eval_accuracy"] == pytest.approx(expected["eval_accuracy"], abs=0.011)  # a row of 101
    assert results[0]["final_rate"] == 0.0
    waiting, stepping = results[0]["clock"]
    assert 0 < waiting < stepping


@pytest.mark.parametrize("strategy", [{"kind": "fsdp"}, {"kind": "deepspeed", "zero_stage": 2}], ids=["fsdp", "zero-2"])
def test_under_a_sharded_strategy_too_and_it_resumes(
    world: Worlds, job: Job, tmp_path: Path, strategy: dict[str, object]
) -> None:
    # DeepSpeed clips in its own step, to the configured norm.
    sections = {"training": {**TRAINING, "max_grad_norm": 1.0}, "checkpoint": {"every": 5}, "scaling": {"workers": 2}}
    built_in = train(world(2), job(**sections))[0]
    config, facts = job(**sections, run=address("as_built_in"), strategy=strategy)
    made = files.inlined(config)[0], facts
    found = own(world(2), made, folder=str(tmp_path))[0]
    losses, expected = ([line["loss"] for line in lines] for lines in (found["steps"], built_in["steps"]))
    np.testing.assert_allclose(losses, expected, rtol=2e-3, atol=ABSOLUTE)
    resumed = own(world(2), made, resume=str(tmp_path / "step-10"))[0]
    assert [line["loss"] for line in resumed["steps"]] == losses[10:]
    assert [line["learning_rate"] for line in resumed["steps"]] == [
        line["learning_rate"] for line in built_in["steps"][10:]
    ]


def test_it_resumes_in_the_middle_of_an_epoch_with_what_it_has_kept(world: Worlds, job: Job, tmp_path: Path) -> None:
    training = {**TRAINING, "epochs": 3}
    made = job(training=training, run=address("as_built_in"), checkpoint={"every": 5})
    unbroken = own(world(2), made, folder=str(tmp_path))[0]
    # 211 rows in batches of 24 are 9 steps an epoch: step 15 is inside the second.
    resumed = own(world(2), made, resume=str(tmp_path / "step-15"))[0]
    assert resumed["first"] == 15
    assert [line["step"] for line in resumed["steps"]] == list(range(16, 28))
    for name in ("loss", "learning_rate"):
        assert [line[name] for line in resumed["steps"]] == [line[name] for line in unbroken["steps"][15:]]
    assert resumed["print"] == unbroken["print"]
    assert [entry["step"] for entry in resumed["history"]] == [9, 18, 27]
    assert resumed["state"]["extra"]["own"] == {"epochs": [0, 1, 2]}


def test_checkpoints_are_saved_when_due_with_the_evaluation_of_their_step_in_them(
    world: Worlds, job: Job, tmp_path: Path
) -> None:
    import json

    made = job(training=TRAINING, run=address("as_built_in"), checkpoint={"every": "epoch"})
    own(world(1), made, folder=str(tmp_path))
    states = {path.name: json.loads((path / "state.json").read_text()) for path in tmp_path.iterdir()}
    assert set(states) == {"step-9", "step-18"}
    assert [entry["step"] for entry in states["step-9"]["history"]] == [9]
    assert not states["step-18"]["stopped_early"]


def test_a_run_that_has_stopped_early_takes_no_more_steps_when_it_is_resumed_as_it_was(
    world: Worlds, job: Job, tmp_path: Path
) -> None:
    training = {**TRAINING, "epochs": 4, "early_stopping_patience": 1, "learning_rate": 1e-9}
    made = job(training=training, run=address("as_built_in"), metrics={"best": "accuracy"})
    result = own(world(1), made, folder=str(tmp_path))[0]["state"]
    assert (result["step"], result["stopped_early"], result["total_steps"]) == (18, True, 36)
    again = own(world(1), made, resume=str(tmp_path / "step-18"))[0]
    assert (again["steps"], again["state"]["stopped_early"], again["first"]) == ([], True, 18)
    assert again["history"] == result["history"]
    longer = job(training={**training, "epochs": 5}, run=address("as_built_in"), metrics={"best": "accuracy"})
    assert own(world(1), longer, resume=str(tmp_path / "step-18"))[0]["state"]["step"] > 18


def test_a_function_that_returns_early_ends_the_run_there_with_a_checkpoint(
    world: Worlds, job: Job, tmp_path: Path
) -> None:
    result = own(
        world(1), job(training={**TRAINING, "batch_size_per_worker": 24}, run=address("stops_after_three_steps")),
        folder=str(tmp_path),
    )[0]  # fmt: skip
    assert result["state"]["step"] == 3
    assert result["state"]["stopped_early"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_the_watchdog_is_told_of_every_batch(world: Worlds, job: Job) -> None:
    # Without that, a run longer than `run.stall_timeout_s` would be ended as one that stands still.
    training = {"batch_size_per_worker": 24, "eval_batch_size_per_worker": 60, "epochs": 1}
    result = own(world(1), job(training=training, run=address("notes_its_activity")))[0]
    assert result["state"]["extra"]["own"]["seen"] == [
        *(f"at step {step}, in run.train_func" for step in range(1, 10)),
        *(f"at step 9, in run.train_func, evaluation batch {number} of 2" for number in (1, 2)),
    ]


def test_model_and_optimizer_that_accelerate_has_prepared_before_are_trained_too(
    world: Worlds, job: Job, tmp_path: Path
) -> None:
    training = {**TRAINING, "batch_size_per_worker": 12}
    made = job(training=training, scaling={"workers": 2}, run=address("prepared_twice"))
    once = job(training=training, scaling={"workers": 2}, run=address("stops_after_three_steps"))
    found, expected = own(world(2), made, folder=str(tmp_path))[0], own(world(2), once)[0]
    assert [line["loss"] for line in found["steps"]] == [line["loss"] for line in expected["steps"]]
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("without_prepare", "returned without a step of context.train"),
        ("leaves_a_step_unfinished", "left in the middle of an optimizer step"),
        ("logs_too_early", "context.log is for after a batch of context.train"),
        ("with_momentum", "the optimizer is SGD; expected torch.optim.AdamW"),
        ("with_a_plain_module", "the model is a Linear, without save_pretrained; expected one of transformers"),
        ("with_amsgrad", "the optimizer is AdamW with amsgrad; expected torch.optim.AdamW"),
        ("keeps_a_tensor", "context.extra holds what JSON cannot: Object of type Tensor is not JSON serializable"),
    ],
)
def test_a_function_that_cannot_be_right_is_stopped_with_words(world: Worlds, job: Job, name: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        own(world(1), job(training=TRAINING, run=address(name)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("tests.gloo.nowhere:train", "ModuleNotFoundError: No module named 'tests.gloo.nowhere'"),
        ("tests.gloo.own:nothing", "tests.gloo.own has no nothing"),
        ("tests.gloo.own:number", "number is of type int, whose call would train nothing"),
        ("tests.gloo.own:of_two", "of_two does not take one argument, the context"),
    ],
)
def test_a_wrong_address_is_refused_with_field_value_and_what_is_expected(wrong: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        resolve(wrong)
    (line,) = error.value.problems
    assert line.startswith(f"run.train_func: found {wrong!r}, expected package.module:function")
    assert line.endswith(words)


def test_an_address_without_a_colon_is_refused_with_the_configuration() -> None:
    with pytest.raises(
        UserError, match=r"run\.train_func: found 'my_project\.train' .*expected package\.module:function"
    ):
        load(None, ["run.train_func=my_project.train"], {})


def test_the_example_resolves_for_both_engines_and_trains(world: Worlds, job: Job, tmp_path: Path) -> None:
    examples = {
        engine: load(str(REPOSITORY / "examples" / f"own-loop-{engine}.yaml"), [], {}) for engine in ("ray", "torch")
    }
    assert {engine: config.data.engine for engine, config in examples.items()} == {"ray": "ray", "torch": "torch"}
    made = job(
        eval_rows=41,
        run={"train_func": examples["torch"].run.train_func},
        model={"config": {"num_hidden_layers": 2}, "from_scratch": False},
        training={"global_batch_size": 12, "epochs": 2, "learning_rate": 2e-3},
        metrics={"best": examples["torch"].metrics.best},
    )
    result = own(world(1), made, folder=str(tmp_path))[0]
    found = [entry["eval_accuracy"] for entry in result["history"]]
    assert len(found) == 2
    assert max(found) > 0.5
    assert result["state"]["best"] == max(found)


def test_the_plain_script_of_the_example_runs_as_it_was_launched(job: Job, tmp_path: Path) -> None:
    data = job()[0].data
    # Without a GPU the launcher starts several processes, on CPUs then, for --multi_gpu alone; --tee names them.
    logs = tmp_path / "logs"
    logs.mkdir()
    launch = [str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--tee", "3"]
    launch += ["--log_dir", str(logs)]
    environ = {**os.environ, "ACCELERATE_USE_CPU": "true", "HF_HOME": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    script = ["--num_processes", "2", "examples/plain_accelerate.py", str(save_bert(tmp_path / "model"))]
    done = subprocess.run(
        [*launch, *script, data.train, data.validation],
        check=False, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert [line[: line.index(" accuracy")] for line in said] == ["[default0]:epoch 0:", "[default0]:epoch 1:"]
    assert said[-1].endswith(" of 101 rows")
    # A process whose tokens another has made first may say nothing at all.
    assert {path.parent.name for path in logs.rglob("stdout.log")} == {"0", "1"}


def test_the_plain_script_and_what_has_become_of_it_differ_in_a_handful_of_lines() -> None:
    plain, brought = ((REPOSITORY / "examples" / name).read_text() for name in ("plain_accelerate.py", "own_loop.py"))
    before, after = (text[text.index("model = ") :].splitlines() for text in (plain, brought))
    added = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert len(added) <= 12
