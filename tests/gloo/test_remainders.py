"""Rows that nothing divides: short accumulations, fewer rows than a batch, workers without a row."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gloo import cases, proofs
from tests.gloo.test_numbers import ABSOLUTE, RELATIVE, train
from tests.gloo.world import World

pytestmark = pytest.mark.timeout(600)
Worlds = Callable[[int], World]
Job = Callable[..., Any]


@pytest.mark.parametrize(
    ("rows", "workers", "batch", "accumulation", "steps"),
    [
        (40, 2, 4, 4, 2),  # five micro-batches on each worker, four to a step
        (24, 2, 4, 8, 1),  # three micro-batches on each worker, eight to a step
        (7, 2, 4, 1, 1),
        (7, 1, 2, 3, 2),
    ],
)
def test_a_short_accumulation_takes_its_step_scaled_by_its_real_size(
    world: Worlds, job: Job, rows: int, workers: int, batch: int, accumulation: int, steps: int
) -> None:
    epochs = 3
    shared = {"epochs": epochs, "learning_rate": 1e-3}
    config, facts = job(rows=rows, training={**shared, "global_batch_size": batch * accumulation * workers})
    plain = world(1).run(cases.losses_of_a_plain_loop, config=config.model_dump(mode="json"), facts=facts.to_json())[0]
    training = {**shared, "batch_size_per_worker": batch, "gradient_accumulation_steps": accumulation}
    results = train(world(workers), job(rows=rows, training=training))
    lines = results[0]["steps"]
    assert [line["step"] for line in lines] == list(range(1, epochs * steps + 1))
    np.testing.assert_allclose([line["loss"] for line in lines], plain["losses"], rtol=RELATIVE, atol=ABSOLUTE)
    assert min(line["learning_rate"] for line in lines) > 0
    assert results[0]["final_rate"] == 0.0
    assert sorted(row for result in results for row in result["rows"]) == sorted([*range(rows)] * epochs)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[World]:
    """Four processes, ended after their one test: they are many for a small machine."""
    started = World(4, str(tmp_path))
    started.run(proofs.places)  # imports, with a deadline of their own
    yield started
    started.close()


def test_three_validation_rows_on_four_workers_count_as_on_one(world: Worlds, job: Job, four: World) -> None:
    made = job(rows=7, eval_rows=3, training={"global_batch_size": 8, "learning_rate": 1e-3})
    alone, spread = train(world(1), made), train(four, made)
    assert sorted(row for result in spread for row in result["rows"]) == sorted([*range(7)] * 2)
    for one, other in zip(alone[0]["history"], spread[0]["history"], strict=True):
        assert (one["eval_rows"], other["eval_rows"]) == (3, 3)
        assert other["eval_accuracy"] == one["eval_accuracy"]
        assert other["eval_loss"] == pytest.approx(one["eval_loss"], rel=RELATIVE)
