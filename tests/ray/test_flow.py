"""One whole run, looked at from every side; then the same again, and one epoch more."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import checkpoint
from pipeline.storage import Store
from tests.ray.conftest import Program, _engine, job, lines_of, result_of

# Each whole run is a start of Ray, about two minutes on two cores.
pytestmark = pytest.mark.timeout(1500)
Unbroken = Callable[[str], Store]
STEPS = 39  # 307 rows in global batches of 24 are 13 steps an epoch


@pytest.mark.parametrize("engine", ["ray", "torch"])
def test_a_run_leaves_a_complete_result_in_the_store(unbroken: Unbroken, engine: str) -> None:
    run = unbroken(engine)
    result = result_of(run)
    assert (result["status"], result["steps"], result["epochs"]) == ("finished", STEPS, 3.0)
    assert (result["train_rows"], result["eval_rows"], result["world_size"]) == (307, 101, 2)
    assert (result["attempts"], result["resumed_from_step"], result["strategy"]) == (1, 0, "ddp")
    assert [entry["step"] for entry in result["history"]] == [13, 26, 39]
    assert result["metrics"]["eval_accuracy"] == result["history"][-1]["eval_accuracy"] > 0.5
    assert result["final_learning_rate"] == 0.0
    assert {worker["rank"] for worker in result["workers"]} == {0, 1}
    assert result["last_checkpoint"] == "checkpoint-00000039-a001"
    assert result["best_checkpoint"] in [str(name) for name in checkpoint.complete(run)]


@pytest.mark.parametrize("engine", ["ray", "torch"])
def test_metrics_have_a_line_for_every_step_with_a_rate_above_zero(unbroken: Unbroken, engine: str) -> None:
    lines = lines_of(unbroken(engine))
    steps = [line for line in lines if "learning_rate" in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert min(line["learning_rate"] for line in steps) > 0
    fields = {
        "time", "attempt", "step", "epoch", "loss", "learning_rate", "grad_norm", "samples_per_second",
        "tokens_per_second", "padding_ratio",
    }  # fmt: skip
    assert all(fields <= line.keys() for line in steps)
    evaluations = [line for line in lines if "learning_rate" not in line]
    assert [line["eval_rows"] for line in evaluations] == [101, 101, 101]
    first, last = (sum(line["loss"] for line in steps[part]) / 5 for part in (slice(5), slice(-5, None)))
    assert last < 0.7 * first


def test_both_engines_give_the_same_numbers(unbroken: Unbroken) -> None:
    ray, torch = unbroken("ray"), unbroken("torch")
    same = ("step", "loss", "learning_rate", "grad_norm", "padding_ratio", "eval_loss", "eval_accuracy", "eval_f1")
    assert [[line.get(key) for key in same] for line in lines_of(ray)] == [
        [line.get(key) for key in same] for line in lines_of(torch)
    ]
    assert result_of(ray)["parameters_sha256"] == result_of(torch)["parameters_sha256"]


def test_the_latest_checkpoints_and_the_best_stay(unbroken: Unbroken) -> None:
    run = unbroken("ray")
    steps = {name.step for name in checkpoint.complete(run)}
    best = checkpoint.Name.parse(result_of(run)["best_checkpoint"])
    assert best is not None
    assert steps == {30, 35, 39} | {best.step}


def test_nothing_in_a_checkpoint_is_a_pickle(unbroken: Unbroken) -> None:
    run = unbroken("ray")
    suffixes = {entry.name.rsplit(".", 1)[-1] for entry in run.child(result_of(run)["last_checkpoint"]).list()}
    assert suffixes == {"json", "safetensors"}


def test_the_log_of_each_rank_is_in_the_store(unbroken: Unbroken) -> None:
    run = unbroken("ray")
    logs = {entry.name: run.read(entry.name).decode() for entry in run.list("logs")}
    assert set(logs) == {"logs/attempt-001-rank-000.log", "logs/attempt-001-rank-001.log"}
    assert "Ray and Accelerate agree" in logs["logs/attempt-001-rank-001.log"]
    assert "saved checkpoint-00000039-a001" in logs["logs/attempt-001-rank-000.log"]


@pytest.mark.slow
def test_runs_are_listed_shown_and_exported(unbroken: Unbroken, program: Program, tmp_path: Path) -> None:
    run = unbroken("ray")
    listed = json.loads(program.run("runs", "list", "--json").stdout)
    row = next(row for row in listed if row["run"] == "unbroken-ray")
    assert (row["status"], row["steps"], row["attempts"]) == ("finished", STEPS, 1)
    assert row["best"]["eval_accuracy"] == max(entry["eval_accuracy"] for entry in result_of(run)["history"])
    shown = json.loads(program.run("runs", "show", "unbroken-ray", "--json").stdout)
    assert shown["result"] == result_of(run)
    assert "accuracy" in program.run("runs", "show", "unbroken-ray").stdout
    program.run("runs", "export", "unbroken-ray", str(tmp_path / "model"), "--checkpoint", "last")

    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert model.config.label2id[model.config.id2label[3]] == 3
    assert len(model.config.id2label) == 10
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("card")["input_ids"]
    assert not (tmp_path / "model" / "optimizer.safetensors").exists()


@pytest.mark.slow
def test_a_finished_run_says_so_and_one_more_epoch_trains_exactly_that(
    unbroken: Unbroken, program: Program, store: Store
) -> None:
    name = "again"
    values = job("train.csv", "validation.csv", run={"name": name}, data=_engine("torch"), training=_epochs(1))
    file = program.write(name, values)
    program.run("train", "-c", file)
    before = result_of(store.child(name))
    assert "is complete" in program.run("train", "-c", file).stdout
    assert result_of(store.child(name)) == before
    program.run("train", "-c", file, "training.epochs=2")
    after = result_of(store.child(name))
    assert (after["steps"], after["resumed_from_step"], after["attempts"]) == (26, 13, 2)
    second = [line for line in lines_of(store.child(name), "metrics/attempt-002.jsonl") if "learning_rate" in line]
    assert [line["step"] for line in second] == list(range(14, 27))
    assert min(line["learning_rate"] for line in second) > 0
    assert "schedule" in store.child(name).read("logs/attempt-002-rank-000.log").decode()


def _epochs(epochs: int) -> dict[str, object]:
    return {"epochs": epochs, "batch_size_per_worker": 12, "learning_rate": 2e-3}


@pytest.mark.slow
def test_another_learning_rate_or_model_under_the_same_name_is_refused(unbroken: Unbroken, program: Program) -> None:
    unbroken("torch")
    done = program.run(
        "train", "-c", "unbroken-torch.yaml", "training.learning_rate=1e-3", "data.max_length=32", status=2
    )
    assert "training.learning_rate: the run has 0.002, the configuration 0.001" in done.stderr
    assert "data.max_length: the run has 48, the configuration 32" in done.stderr
    assert "Traceback" not in done.stderr
