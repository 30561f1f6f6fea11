"""The learning rate as a function of the optimizer step, whatever the worker count and the accumulation."""

import math
from typing import Any, Literal

import torch

Kind = Literal["linear", "cosine", "constant"]


def factor(step: int, total: int, warmup: int, kind: Kind) -> float:
    """Share of the peak rate that step `step` (0-based) of `total` uses.

    Above 0 for every step below `total`, warm-up included: a first step with rate 0 would train nothing. At `total`,
    after the last step, linear and cosine are 0.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if kind == "constant":
        return 1.0
    left = max(0.0, (total - step) / (total - warmup))
    return left if kind == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))


def build(
    optimizer: torch.optim.Optimizer, total: int, warmup_ratio: float, kind: Kind, done: int = 0
) -> torch.optim.lr_scheduler.LambdaLR:
    """A scheduler that is stepped once for each optimizer step, after `done` steps.

    Warm-up is `warmup_ratio` of all steps, rounded down. The groups' rates are taken for the peak.
    """
    for group in optimizer.param_groups:
        # What LambdaLR starts from; it asks for it when steps have been done.
        group.setdefault("initial_lr", group["lr"])
    warmup = int(total * warmup_ratio)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, total, warmup, kind), done - 1)


def state(scheduler: Any) -> dict[str, Any]:
    """What JSON can hold of the state of any scheduler."""
    return {name: value for name, value in scheduler.state_dict().items() if _is_plain(value)}


def restore(scheduler: Any, saved: dict[str, Any]) -> None:
    """Put a scheduler where a checkpoint left it.

    A schedule that is a function of the step is asked anew: over more epochs than before its rate is another.
    """
    scheduler.load_state_dict({**scheduler.state_dict(), **saved})
    if isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
        pairs = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        scheduler._last_lr = [base * share(scheduler.last_epoch) for base, share in pairs]
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
