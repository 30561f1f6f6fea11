"""A run that is started again: finished, longer, with another model, elsewhere, after metrics that fell or were NaN."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from pipeline import checkpoint, fit, launch, loop
from pipeline.cluster import Capacity
from pipeline.config import Config
from pipeline.destination import filled
from pipeline.errors import RunError, UserError
from pipeline.preflight import preflight
from pipeline.result import Result
from pipeline.run import RunFolder
from pipeline.runs import copy, export, found, summaries
from pipeline.storage import Store, open_store
from tests.gloo import workers
from tests.gloo.conftest import TINY
from tests.gloo.world import World

pytestmark = pytest.mark.timeout(600)
Worlds = Callable[[int], World]
Jobs = Callable[..., Config]
CAPACITY = Capacity(({"CPU": 8.0},), local=True)


def start(world: World, config: Config) -> Result:
    """What `pipeline train` does, with the workers on bare processes."""
    checks, prepared = preflight(config, CAPACITY)
    if prepared is None:
        raise UserError(*checks.problems)
    if prepared.complete:
        return launch.train(config)
    folder = RunFolder.of(config)
    folder.take_over(config, prepared.facts)
    arguments = {"config": config.model_dump(mode="json"), "facts": prepared.facts.to_json(), "owner": folder.owner}
    outcome = world.run(workers.train, **arguments)[0]
    if "problems" in outcome:
        raise RunError(*outcome["problems"])
    return fit._finish(prepared, folder, outcome, 1.0)


def folder_of(config: Config) -> Store:
    return open_store(config.storage).child(config.run.name)


def model_of(store: Store, name: str, scratch: Path) -> dict[str, Any]:
    checkpoint.download(store, name, scratch / name, lambda file: file.endswith("model.safetensors"))
    tensors: dict[str, Any] = load_file(scratch / name / "model.safetensors")
    return tensors


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)


def test_a_finished_run_is_not_trained_again_and_more_epochs_are_exactly_those(world: Worlds, configured: Jobs) -> None:
    first = start(world(1), configured())
    assert (first.steps, first.epochs, first.already) == (10, 2.0, False)
    again = start(world(1), configured())
    assert (again.already, again.steps, again.attempts) == (True, 10, 1)
    assert again.metrics == first.metrics
    # A checkpoint at the very end of an epoch is where the next one begins, on two workers as well.
    longer = start(world(2), configured(training={"epochs": 3}, scaling={"workers": 2}))
    assert (longer.steps, longer.resumed_from_step, longer.attempts, longer.epochs) == (15, 10, 2, 3.0)
    assert [entry["step"] for entry in longer.history] == [5, 10, 15]
    assert longer.history[:2] == first.history
    lines = [json.loads(line) for line in folder_of(configured()).read("metrics.jsonl").splitlines()]
    steps = [line for line in lines if "learning_rate" in line]
    assert [line["step"] for line in steps] == list(range(1, 16))
    assert min(line["learning_rate"] for line in steps) > 0
    assert [line["epoch"] for line in steps[9:11]] == pytest.approx([2.0, 2.2])
    # Fewer epochs than it has: it is complete.
    assert start(world(1), configured(training={"epochs": 1})).already


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"config": {**TINY, "num_hidden_layers": 1}}}, "model.config: the run has"),
        ({"model": {"from_scratch": False, "config": {}}}, "model.from_scratch: the run has true, the configuration"),
        ({"training": {"learning_rate": 2e-3}}, "training.learning_rate: the run has 0.001, the configuration 0.002"),
        ({"data": {"max_length": 64}}, "data.max_length: the run has 128, the configuration 64"),
        ({"run": {"seed": 1}}, "run.seed: the run has 42, the configuration 1"),
    ],
    ids=["model", "weights", "rate", "data", "seed"],
)
def test_another_job_under_the_name_of_a_run_is_refused_and_the_run_stays_as_it_is(
    configured: Jobs, sections: dict[str, Any], words: str
) -> None:
    config = configured()
    _, prepared = preflight(config, CAPACITY)
    assert prepared is not None
    RunFolder.of(config).take_over(config, prepared.facts)
    before = {entry.name: folder_of(config).read(entry.name) for entry in folder_of(config).list()}
    with pytest.raises(UserError) as caught:
        launch.train(configured(**sections))
    assert any(words in problem for problem in caught.value.problems), caught.value.problems
    assert caught.value.problems[-1].startswith("run.name: take another name")
    assert {entry.name: folder_of(config).read(entry.name) for entry in folder_of(config).list()} == before


METRIC = """
from pathlib import Path

import datasets
import evaluate

class Given(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"score": SCORE}
"""
# The first score is the best one, also after the run was started again.
FALLING = """next(1 / (2 + len(calls)) for calls in [[*Path("COUNT").iterdir()]] if not (
            Path("COUNT") / str(len(calls))).touch())"""


def metric(tmp_path: Path, score: str) -> dict[str, object]:
    """The configuration of a user's metric that says `score`, a Python expression."""
    (tmp_path / "count").mkdir()
    file = tmp_path / "given.py"
    file.write_text(METRIC.replace("SCORE", score.replace("COUNT", str(tmp_path / "count"))))
    return {"names": [str(file), "accuracy"], "best": "score", "mode": "max"}


def test_while_the_score_falls_the_latest_stays_to_resume_from_and_the_best_is_kept_as_well(
    world: Worlds, configured: Jobs, tmp_path: Path
) -> None:
    worse: dict[str, Any] = {"metrics": metric(tmp_path, FALLING), "checkpoint": {"keep": 1}}
    result = start(world(1), configured(training={"epochs": 3}, **worse))
    assert [entry["eval_score"] for entry in result.history] == [1 / 2, 1 / 3, 1 / 4]
    assert (result.best_checkpoint, result.last_checkpoint) == ("checkpoint-00000005-a001", "checkpoint-00000015-a001")
    run = folder_of(configured())
    assert [name.step for name in checkpoint.complete(run)] == [5, 15]
    export(run, tmp_path / "best", "best")
    export(run, tmp_path / "last", "last")
    assert same(load_file(tmp_path / "best" / "model.safetensors"), model_of(run, result.best_checkpoint, tmp_path))
    assert same(load_file(tmp_path / "last" / "model.safetensors"), model_of(run, result.last_checkpoint, tmp_path))
    # It goes on from the latest, not from the best, and knows the best still.
    longer = start(world(1), configured(training={"epochs": 4}, **worse))
    assert (longer.resumed_from_step, longer.steps) == (15, 20)
    assert longer.best_checkpoint == "checkpoint-00000005-a001"
    assert [name.step for name in checkpoint.complete(run)] == [5, 20]
    # A best one that was lost is not silently another.
    run.delete("checkpoint-00000005-a001")
    with pytest.raises(
        UserError, match=r"best checkpoint, checkpoint-00000005-a001, is not complete.*--checkpoint last"
    ):
        export(run, tmp_path / "lost", "best")


def test_a_run_that_stopped_early_stays_so_when_its_driver_died_before_the_result(
    world: Worlds, configured: Jobs, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {"metrics": metric(tmp_path, FALLING)}
    patient = {"epochs": 4, "early_stopping_patience": 1}
    first = start(world(1), configured(training=patient, **sections))
    assert (first.steps, first.total_steps, first.stopped_early) == (10, 20, True)
    run = folder_of(configured())
    run.delete("result.json")
    again = start(world(1), configured(training=patient, **sections))
    assert (again.steps, again.resumed_from_step, again.stopped_early, again.attempts) == (10, 10, True, 2)
    assert (again.history, again.best_checkpoint) == (first.history, first.best_checkpoint)
    assert again.parameters_sha256 == first.parameters_sha256
    # What was made longer goes on, from the result or without it.
    run.delete("result.json")
    longer = start(world(1), configured(training={**patient, "epochs": 5}, **sections))
    assert (longer.steps, longer.resumed_from_step, longer.total_steps) == (15, 10, 25)


def test_a_metric_that_is_nan_is_never_the_best_and_written_as_null(
    world: Worlds, configured: Jobs, tmp_path: Path
) -> None:
    metrics = metric(tmp_path, 'float("nan")')
    result = start(world(1), configured(metrics=metrics, checkpoint={"keep": 1}))
    assert (result.steps, result.best_checkpoint) == (10, "checkpoint-00000010-a001")
    run = folder_of(configured())
    written = json.loads(run.read("result.json"), parse_constant=refuse)
    assert written["metrics"]["eval_score"] is None
    assert written["metrics"]["eval_accuracy"] > 0
    manifest = run.child("checkpoint-00000010-a001")
    for name in ("manifest.json", "state.json"):
        json.loads(manifest.read(name), parse_constant=refuse)
    for line in run.read("metrics.jsonl").splitlines():
        json.loads(line, parse_constant=refuse)
    (row,) = summaries(open_store(configured().storage))
    assert row["best"]["eval_score"] is None
    # It resumes, and a run that is finished is shown, though null stands for the metric.
    longer = start(world(1), configured(metrics=metrics, checkpoint={"keep": 1}, training={"epochs": 3}))
    assert (longer.steps, longer.resumed_from_step) == (15, 10)
    assert start(world(1), configured(metrics=metrics, training={"epochs": 3})).already


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def test_a_run_that_was_copied_elsewhere_goes_on_there_and_is_exported_from_there(
    world: Worlds, configured: Jobs, tmp_path: Path
) -> None:
    unbroken = start(world(1), configured(storage=tmp_path / "unbroken"))
    begun = start(world(1), configured(storage=tmp_path / "here", training={"max_steps": 7}))
    assert begun.steps == 7
    shutil.copytree(tmp_path / "here" / "run", tmp_path / "there" / "deep" / "run")
    shutil.rmtree(tmp_path / "here")
    elsewhere = configured(storage=tmp_path / "there" / "deep")
    result = start(world(1), elsewhere)
    assert (result.steps, result.resumed_from_step, result.attempts) == (10, 7, 2)
    # max_steps had made another schedule of the first seven steps, so only what does not depend on it is the same.
    assert (result.train_rows, result.eval_rows, result.epochs) == (unbroken.train_rows, unbroken.eval_rows, 2.0)
    assert not (tmp_path / "here").exists()
    with found(str(tmp_path / "there" / "deep" / "run"), None) as run:
        assert export(run, tmp_path / "model", "last") == result.last_checkpoint
    assert same(load_file(tmp_path / "model" / "model.safetensors"), model_of(run, result.last_checkpoint, tmp_path))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["id2label"]["0"] == "card_arrival"


def test_a_copy_with_its_checkpoints_is_a_run_that_goes_on(world: Worlds, configured: Jobs, tmp_path: Path) -> None:
    start(world(1), configured())
    with filled(tmp_path / "copies" / "run") as partial:
        copy(folder_of(configured()), partial, checkpoints=True)
    longer = start(world(1), configured(storage=tmp_path / "copies", training={"epochs": 3}))
    assert (longer.steps, longer.resumed_from_step, longer.attempts) == (15, 10, 2)
    assert [entry["step"] for entry in longer.history] == [5, 10, 15]
    # In the order in which they were measured, though they have been through checkpoints and a copy.
    assert list(longer.history[0]) == list(longer.history[-1])
    written = json.loads(folder_of(configured(storage=tmp_path / "copies")).read("result.json"))
    assert list(written["history"][0]) == list(longer.history[-1])


def test_what_ended_a_run_early_is_forgotten_only_where_its_steps_are_others() -> None:
    stopped = loop.State(step=3, stale=2, stopped_early=True, total_steps=9)
    assert stopped.of_run(9) == stopped
    assert stopped.of_run(12) == loop.State(step=3, total_steps=12)
    # Saved by a version that did not note them: it goes on.
    assert loop.State(step=3, stale=2, stopped_early=True).of_run(9) == loop.State(step=3, total_steps=9)
    # What has not stopped keeps its count.
    assert loop.State(step=3, stale=2, total_steps=9).of_run(12).stale == 2


def test_a_state_goes_there_and_back_through_json() -> None:
    state = loop.State(3, [{"step": 3, "eval_f1": float("nan")}], None, None, 1, False)
    back = loop.State(**json.loads(json.dumps(state.to_json()), parse_constant=refuse))
    assert back.history == [{"step": 3, "eval_f1": None}]
    assert (back.step, back.stale, back.best) == (3, 1, None)
