"""A scheduler of the user's own goes on where a checkpoint left it."""

import json

import pytest
import torch

from pipeline import schedule


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1.0)


def _rates(scheduler: torch.optim.lr_scheduler.LRScheduler, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        scheduler.optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("kind", ["lambda", "one-cycle", "exponential"])
def test_the_rates_after_a_restore_are_those_of_an_unbroken_schedule(kind: str) -> None:
    def make() -> torch.optim.lr_scheduler.LRScheduler:
        optimizer = _optimizer()
        if kind == "lambda":
            return schedule.build(optimizer, 10, 0.2, "linear")
        if kind == "one-cycle":
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10, cycle_momentum=False)
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    unbroken = _rates(make(), 10)
    first = make()
    assert _rates(first, 4) == unbroken[:4]
    kept = json.loads(json.dumps(schedule.state(first)))
    second = make()
    schedule.restore(second, kept)
    assert _rates(second, 6) == pytest.approx(unbroken[4:], rel=1e-9)


def test_a_schedule_that_was_made_longer_has_no_step_with_rate_0() -> None:
    short = schedule.build(_optimizer(), 4, 0.0, "linear")
    _rates(short, 4)
    assert short.get_last_lr() == [0.0]
    longer = schedule.build(_optimizer(), 8, 0.0, "linear")
    schedule.restore(longer, json.loads(json.dumps(schedule.state(short))))
    assert _rates(longer, 4) == pytest.approx([0.5, 0.375, 0.25, 0.125])
