"""Losses and gradients that are no numbers, outputs in bf16, and means over rows that ranks hold unevenly."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.gloo import cases, spoiled
from tests.gloo.world import World

pytestmark = pytest.mark.timeout(600)
Worlds = Callable[[int], World]
Job = Callable[..., Any]


def train(world: World, job: tuple[Any, Any], folder: Path, spoil: str, at: int = 4) -> list[dict[str, Any]]:
    config, facts = job
    arguments = {"config": config.model_dump(mode="json"), "facts": facts.to_json()}
    folder.mkdir()
    return world.run(spoiled.train, **arguments, folder=str(folder), spoil=spoil, at=at)


@pytest.mark.parametrize(
    ("spoil", "log_every", "words"),
    [
        ("nan", 1, "the loss is nan and the gradient norm is nan at step 4 (learning rate "),
        ("inf", 1, "at step 4 (learning rate "),
        ("nan", 3, "the loss is nan and the gradient norm is nan at step 4 (learning rate "),
        ("gradient", 1, "the gradient norm is nan at step 4 (learning rate "),
    ],
)
def test_the_first_bad_loss_of_any_rank_stops_all_ranks_with_step_and_rate_and_saves_nothing_of_it(
    world: Worlds, job: Job, tmp_path: Path, spoil: str, log_every: int, words: str
) -> None:
    made = job(rows=120, training={"batch_size_per_worker": 12, "log_every": log_every}, checkpoint={"every": 1})
    results = train(world(2), made, tmp_path / "saved", spoil)
    assert results[0]["problem"] == results[1]["problem"]
    assert words in results[0]["problem"]
    rate = results[0]["steps"][3]["learning_rate"]
    assert f"(learning rate {rate:.3g})" in results[0]["problem"]
    assert "training.learning_rate" in results[0]["problem"]
    assert "training.stop_on_bad_loss=false" in results[0]["problem"]
    assert results[0]["saved"] == ["step-1", "step-2", "step-3"]


@pytest.mark.parametrize("spoil", ["nan", "gradient"])
def test_a_run_that_is_to_go_on_leaves_the_bad_step_out_and_ends_with_good_numbers(
    world: Worlds, job: Job, tmp_path: Path, spoil: str
) -> None:
    training = {"batch_size_per_worker": 12, "stop_on_bad_loss": False, "epochs": 2}
    made = job(rows=120, training=training, checkpoint={"every": 1})
    results = train(world(2), made, tmp_path / "saved", spoil)
    first, lines = results[0], results[0]["steps"]
    assert first["problem"] is None
    assert len(lines) == first["total"] == 10
    assert [line["step"] for line in lines if line.get("skipped")] == [4]
    assert math.isnan(lines[3]["grad_norm"])
    assert all(math.isfinite(line["loss"]) for line in lines if line["step"] != 4)
    assert all(result["finite"] for result in results)
    assert first["print"] == results[1]["print"]
    assert first["final_rate"] == 0.0
    # The parameters after the bad step are those before it; the next one changes them.
    before, bad, after = (load_file(tmp_path / "saved" / f"step-{step}" / "model.safetensors") for step in (3, 4, 5))
    assert all((before[name] == bad[name]).all() for name in before)
    assert any((bad[name] != after[name]).any() for name in before)


def test_bf16_outputs_reach_the_metrics_as_float32_and_mean_over_all_rows(
    world: Worlds, job: Job, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    # Rows of very different error, 5 on 2 workers: a mean of the workers' means would be another number.
    for name, count in (("train", 48), ("validation", 5)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "number"])
            writer.writerows([f"text {'long ' * number}", 0.3 * number * number] for number in range(count))
    data = {
        "train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "validation.csv"),
        "columns": {"label": "number"},
    }  # fmt: skip
    config, facts = job(
        data=data, model={"task": "regression"}, training={"mixed_precision": "bf16", "global_batch_size": 24}
    )
    arguments = {"config": config.model_dump(mode="json"), "facts": facts.to_json()}
    result = world(2).run(cases.train, **arguments)[0]
    final = result["history"][-1]
    model = AutoModelForSequenceClassification.from_pretrained(result["exported"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(result["exported"])
    found, wanted = [], []
    with (tmp_path / "validation.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                found.append(float(model(**tokenizer(row["text"], return_tensors="pt")).logits.float()))
            wanted.append(float(row["number"]))
    errors = (np.asarray(found) - np.asarray(wanted)) ** 2
    assert final["eval_rows"] == 5
    assert final["eval_mse"] == pytest.approx(errors.mean(), rel=0.02)
    # Loss and metric are the same mean, the one of float32 losses, the other of float32 predictions.
    assert final["eval_mse"] == pytest.approx(final["eval_loss"], rel=1e-5)
    of_means = (errors[0::2].mean() + errors[1::2].mean()) / 2
    assert abs(of_means - errors.mean()) / errors.mean() > 0.05
