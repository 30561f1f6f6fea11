"""Right numbers on 1, 2 and 3 workers: schedule, rows, losses, evaluation, resume."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gloo import cases, proofs
from tests.gloo.world import World

pytestmark = pytest.mark.timeout(600)
Worlds = Callable[[int], World]
Job = Callable[..., Any]

# Sums of float32 in another order: relative error of a loss after a few dozen steps.
RELATIVE, ABSOLUTE = 2e-4, 2e-5


def train(world: World, job: tuple[Any, Any], **more: Any) -> list[dict[str, Any]]:
    config, facts = job
    return world.run(cases.train, config=config.model_dump(mode="json"), facts=facts.to_json(), **more)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.1])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_rate_is_above_zero_in_every_step_and_zero_after_the_last(
    world: Worlds, job: Job, workers: int, warmup: float, accumulation: int
) -> None:
    training = {
        "warmup_ratio": warmup, "gradient_accumulation_steps": accumulation, "epochs": 2, "batch_size_per_worker": 4,
        "learning_rate": 1e-3,
    }  # fmt: skip
    result = train(world(workers), job(rows=211, training=training))[0]
    per_epoch = math.ceil(211 / (4 * accumulation * workers))
    assert [line["step"] for line in result["steps"]] == list(range(1, 2 * per_epoch + 1))
    rates = [line["learning_rate"] for line in result["steps"]]
    assert min(rates) > 0
    assert result["final_rate"] == 0.0
    assert max(rates) == pytest.approx(1e-3)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("rows", [211, 7])
def test_every_training_row_is_used_once_an_epoch_whatever_the_counts(
    world: Worlds, job: Job, workers: int, rows: int
) -> None:
    results = train(world(workers), job(rows=rows, training={"epochs": 2, "batch_size_per_worker": 4}))
    used = sorted(row for result in results for row in result["rows"])
    assert used == sorted([*range(rows), *range(rows)])


@pytest.mark.parametrize("rows", [211, 240])
def test_one_two_and_three_workers_give_the_loss_curve_of_a_plain_loop(world: Worlds, job: Job, rows: int) -> None:
    made = job(rows=rows, training={"global_batch_size": 24, "epochs": 2, "learning_rate": 1e-3})
    config, facts = made
    plain = world(1).run(cases.losses_of_a_plain_loop, config=config.model_dump(mode="json"), facts=facts.to_json())[0][
        "losses"
    ]
    assert plain[-3:].mean() < plain[:3].mean()
    for workers in (1, 2, 3):
        result = train(world(workers), made)[0]
        np.testing.assert_allclose([line["loss"] for line in result["steps"]], plain, rtol=RELATIVE, atol=ABSOLUTE)


def test_accumulation_changes_nothing_but_memory(world: Worlds, job: Job) -> None:
    curves = []
    for batch, accumulation in ((24, 1), (6, 4)):
        training = {"batch_size_per_worker": batch, "gradient_accumulation_steps": accumulation, "learning_rate": 1e-3}
        result = train(world(1), job(training=training))[0]
        curves.append([(line["loss"], line["grad_norm"]) for line in result["steps"]])
    np.testing.assert_allclose(curves[0], curves[1], rtol=RELATIVE, atol=ABSOLUTE)


def test_gradient_norms_are_those_before_clipping_and_the_same_on_any_worker_count(world: Worlds, job: Job) -> None:
    made = job(training={"global_batch_size": 24, "max_grad_norm": 0.05, "learning_rate": 1e-3})
    norms = [[line["grad_norm"] for line in train(world(workers), made)[0]["steps"]] for workers in (1, 2, 3)]
    assert min(norms[0]) > 0.05
    for other in norms[1:]:
        np.testing.assert_allclose(other, norms[0], rtol=2e-3)


@pytest.mark.parametrize(("rows", "eval_rows"), [(211, 101), (211, 1), (211, 3), (500, 3080)])
def test_evaluation_counts_every_row_once_and_equals_a_plain_evaluation_of_the_export(
    world: Worlds, job: Job, rows: int, eval_rows: int
) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    found = []
    for workers in (1, 2, 3):
        config, facts = job(rows, eval_rows, training={"global_batch_size": 24, "learning_rate": 2e-3})
        result = train(world(workers), (config, facts))[0]
        final = result["history"][-1]
        assert final["eval_rows"] == eval_rows
        expected, wanted, loss = _plain_evaluation(result["exported"], config.data.validation)
        assert final["eval_accuracy"] == pytest.approx(accuracy_score(wanted, expected), abs=1e-12)
        macro = f1_score(wanted, expected, average="macro", zero_division=0)
        assert final["eval_f1"] == pytest.approx(macro, abs=1e-12)
        assert final["eval_loss"] == pytest.approx(loss, rel=1e-5)
        found.append(final["eval_accuracy"])
    assert found[0] == found[1] == found[2]


def _plain_evaluation(folder: str, path: str) -> tuple[list[int], list[int], float]:
    import csv

    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted = torch.tensor([model.config.label2id[row["category"]] for row in rows])
    logits = []
    for start in range(0, len(rows), 32):
        texts = [row["text"] for row in rows[start : start + 32]]
        with torch.no_grad():
            batch = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=128)
            logits.append(model(**batch).logits)
    found = torch.cat(logits)
    loss = float(torch.nn.functional.cross_entropy(found.double(), wanted))
    return found.argmax(1).tolist(), wanted.tolist(), loss


def test_ranks_end_with_equal_parameters_which_half_the_data_would_not_give(world: Worlds, job: Job) -> None:
    made = job(rows=210, training={"global_batch_size": 24, "learning_rate": 1e-3})
    prints = [result["print"] for result in train(world(2), made)]
    assert prints[0] == prints[1]
    alone = train(world(1), job(rows=105, training={"global_batch_size": 12, "learning_rate": 1e-3}))[0]
    assert alone["print"] != prints[0]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_accelerate_sees_the_world_that_was_started(world: Worlds, workers: int) -> None:
    assert world(workers).run(proofs.places) == [(rank, rank, workers) for rank in range(workers)]


def test_a_world_of_one_where_more_were_started_is_refused_with_both_numbers(world: Worlds) -> None:
    assert world(1).run(proofs.prove_wrong_world, size=2) == ["world size: Ray has 2, Accelerate has 1"]


@pytest.mark.parametrize(("workers", "then"), [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_a_run_resumed_in_the_middle_of_an_epoch_ends_as_an_unbroken_one(
    world: Worlds, job: Job, tmp_path: Any, workers: int, then: int
) -> None:
    # With dropout, so that random states count; other worker counts draw other masks, so there without.
    dropout = {"model": {"config": {**_tiny(), "hidden_dropout_prob": 0.1 if workers == then else 0.0}}}
    made = job(
        training={"global_batch_size": 24, "learning_rate": 1e-3, "epochs": 3}, checkpoint={"every": 5},
        model={"config": dropout["model"]["config"], "from_scratch": True},
    )  # fmt: skip
    unbroken = train(world(workers), made, folder=str(tmp_path))[0]
    # 211 rows in batches of 24 are 9 steps an epoch: step 15 is inside the second.
    resumed = train(world(then), made, resume=str(tmp_path / "step-15"))[0]
    assert resumed["first"] == 15
    lines = unbroken["steps"][15:]
    if workers == then:
        assert resumed["print"] == unbroken["print"]
        assert [line["loss"] for line in resumed["steps"]] == [line["loss"] for line in lines]
        assert _metrics(resumed["history"]) == _metrics(unbroken["history"])
    else:
        np.testing.assert_allclose(
            [line["loss"] for line in resumed["steps"]], [line["loss"] for line in lines], rtol=RELATIVE, atol=ABSOLUTE
        )
    assert [line["learning_rate"] for line in resumed["steps"]] == [line["learning_rate"] for line in lines]


def _tiny() -> dict[str, object]:
    from tests.gloo.conftest import TINY

    return dict(TINY)


def _metrics(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key != "eval_seconds"} for entry in history]
