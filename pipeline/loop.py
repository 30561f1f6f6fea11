"""The training loop, top to bottom: data, forward, backward, step, log, evaluate, save.

It knows nothing of Ray, Kubernetes or storage; what it needs from them comes in as `Parts`.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from pipeline import activity
from pipeline.config import Config
from pipeline.data.batch import Batch
from pipeline.data.engine import Batches
from pipeline.data.plan import FILL, Step
from pipeline.errors import RunError
from pipeline.result import plain
from pipeline.strategy import backward, gradient_norm, synchronised
from pipeline.tasks import inputs, judged, outcome, row_losses


@dataclass(frozen=True)
class State:
    """Position and history of a run; what a checkpoint holds beside tensors.

    `step` counts optimizer steps done. `history` has the metrics of each evaluation. `best_step` is the step of the
    best of them, `stale` the number of evaluations since. `extra` is what a train function of the user's own keeps.
    `total_steps` are those that the run had in all; None if an older version saved it.
    """

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    best_step: int | None = None
    stale: int = 0
    stopped_early: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    total_steps: int | None = None

    def of_run(self, steps: int) -> "State":
        """The state for a run of `steps` in all: what ended a shorter run early does not end one that was made longer.

        A run that has stopped early and is started again as it was, since its driver died before the result was
        written, stays stopped.
        """
        if self.stopped_early and self.step < steps and self.total_steps != steps:
            return replace(self, stopped_early=False, stale=0, total_steps=steps)
        return replace(self, total_steps=steps)

    def is_evaluated(self) -> bool:
        """Whether there are metrics of this very step."""
        return bool(self.history) and self.history[-1]["step"] == self.step

    def to_json(self) -> dict[str, Any]:
        """As a dictionary for JSON, which has null for a metric that is NaN."""
        return {str(key): plain(value) for key, value in asdict(self).items()}


class Run(Protocol):
    """What the loop tells the outside; rank 0's is written down, the others' is not."""

    def log(self, line: dict[str, Any]) -> None:
        """A line of `metrics.jsonl`."""

    def evaluating(self, done: int, total: int) -> None:
        """An evaluation is at batch `done` of `total`."""

    def check_due(self) -> bool:
        """Whether it is time for all ranks to ask `must_save`; any rank may say so."""

    def must_save(self) -> bool:
        """Whether a node is about to be taken away; every rank calls it at the same step."""

    def report(self, state: State, save: bool) -> None:
        """The metrics of a state and, with `save`, a checkpoint of it; every rank calls it at the same step."""


@dataclass(frozen=True)
class Parts:
    """Everything a loop works with, prepared by Accelerate. `scorer` turns predictions into metrics, on rank 0."""

    config: Config
    accelerator: Any
    model: torch.nn.Module
    optimizer: Any
    scheduler: Any
    batches: Batches
    steps: int
    scorer: Any
    best: tuple[str, str]
    run: Run
    multiple: int = 1


@dataclass
class Clock:
    """Seconds spent waiting for data, of all seconds spent in steps."""

    waiting: float = 0.0
    stepping: float = 0.0


def fit(parts: Parts, state: State, clock: Clock) -> State:
    """Train from `state` to the last step, and give back the state reached.

    Raises:
        RunError: loss or gradients became NaN or infinite, and `training.stop_on_bad_loss` is set.
    """
    training, checkpoint = parts.config.training, parts.config.checkpoint
    plan = parts.batches.plan
    state = state.of_run(parts.steps)
    batches = parts.batches.train(state.step) if state.step < parts.steps and not state.stopped_early else iter(())
    pending: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]] = []
    if state.step >= parts.steps and parts.batches.validation_plan is not None and not state.is_evaluated():
        # A run that was cut short, at a step that it had reached: its metrics are those of the model it ends with.
        state, _ = best_so_far(parts, state, evaluate(parts))
        activity.mark("saving", state.step, checkpoint.upload_timeout_s)
        parts.run.report(state, True)
    while state.step < parts.steps and not state.stopped_early:
        began = time.perf_counter()
        step = plan.step(state.step, parts.multiple)
        waiting_before = clock.waiting
        rate = parts.scheduler.get_last_lr()[0]
        loss, norm = _train_step(parts, state.step, step, batches, clock)
        usable = _usable(parts, norm)
        if usable:
            parts.optimizer.step()
        parts.scheduler.step()
        parts.optimizer.zero_grad()
        state = replace(state, step=state.step + 1)
        seconds = time.perf_counter() - began
        clock.stepping += seconds
        epoch_ends = state.step % plan.steps_per_epoch == 0
        line = {
            "step": state.step,
            "epoch": state.step / plan.steps_per_epoch,
            "learning_rate": rate,
            "samples_per_second": len(step.rows) / seconds,
            "tokens_per_second": step.tokens / seconds,
            "padding_ratio": 1 - step.tokens / step.padded_tokens,
            "data_wait_share": (clock.waiting - waiting_before) / seconds,
        } | ({} if usable else {"skipped": True})
        pending.append((line, loss, norm))

        last = state.step == parts.steps
        evaluate_now = parts.batches.validation_plan is not None and (
            last or _due(training.eval_every, state.step, epoch_ends)
        )
        save_now = last or _due(checkpoint.every, state.step, epoch_ends)
        if len(pending) == training.log_every or evaluate_now or save_now:
            save_now = _log(parts, pending) or save_now
        if evaluate_now:
            state, better = best_so_far(parts, state, evaluate(parts))
            save_now = save_now or better or state.stopped_early
        if evaluate_now or save_now:
            # A store that is away holds up a save for as long as uploads are tried again.
            activity.mark("saving" if save_now else "reporting", state.step, checkpoint.upload_timeout_s)
            parts.run.report(state, save_now)
    return state


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout depends on seed, step and rank alone: not on the engine, on evaluations, or on where a run resumed."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1)))


def _due(every: str | int, step: int, epoch_ends: bool) -> bool:
    return epoch_ends if every == "epoch" else step % int(every) == 0


def _train_step(
    parts: Parts, index: int, step: Step, batches: Iterator[Batch], clock: Clock
) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward over the micro-batches of an optimizer step: this rank's share of the loss, and the norm."""
    accelerator, model = parts.accelerator, parts.model
    model.train()
    loss = torch.zeros((), device=accelerator.device)
    for number in range(step.micro_batches):
        asked = time.perf_counter()
        activity.mark("waiting for a batch", index + 1)
        batch = next(batches)
        activity.mark("forward and backward")
        clock.waiting += time.perf_counter() - asked
        if number == 0:
            # After the batch is there: a loader that starts an epoch draws a number too.
            seed_step(parts.config.run.seed, index, accelerator.process_index)
        with synchronised(accelerator, model, last=number + 1 == step.micro_batches):
            with accelerator.autocast():
                logits = model(**inputs(batch, accelerator.device)).logits
            weight = batch["weight"].to(accelerator.device)
            losses = row_losses(parts.config.model.task, logits, batch["labels"].to(accelerator.device))
            # Weight 0: rows of a language model without a token that counts.
            part = (losses * weight).sum() / (step.weight or 1.0)
            # Gradients are averaged over the processes; the loss is to be a sum over all their rows.
            backward(accelerator, model, part * accelerator.num_processes)
        loss += part.detach()
    return loss, gradient_norm(accelerator, model, parts.config.training.max_grad_norm)


def _usable(parts: Parts, norm: torch.Tensor) -> bool:
    """Whether the step may be taken. Gradients that are not finite would spoil the parameters for good.

    They are averaged over the ranks, so all ranks find the same. Asked only where the run is to go on after them: it
    waits for the device in each step. fp16's scaler skips such steps by itself.
    """
    if parts.config.training.stop_on_bad_loss or parts.accelerator.scaler is not None:
        return True
    return bool(torch.isfinite(norm))


def _log(parts: Parts, pending: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]) -> bool:
    """Add up the ranks' shares of the losses, once for all pending steps, and write their lines.

    The same message tells whether some rank wants all to ask if they must save, so that asking costs nothing in the
    steps between; returns the answer.
    """
    activity.mark("adding up the losses of all ranks")
    asks = torch.tensor(float(parts.run.check_due()), device=parts.accelerator.device)
    shares = torch.stack([*(loss for _, loss, _ in pending), asks])
    *sums, asked = parts.accelerator.reduce(shares, reduction="sum").tolist()
    for (line, _, norm), loss in zip(pending, sums, strict=True):
        found = {"loss": loss, "gradient norm": float(norm)}
        parts.run.log(line | {"loss": loss, "grad_norm": found["gradient norm"]})
        if parts.accelerator.scaler is not None:
            del found["gradient norm"]  # fp16 overflows now and then, and its scaler skips the step
        bad = [f"{name} is {value}" for name, value in found.items() if not math.isfinite(value)]
        if bad and parts.config.training.stop_on_bad_loss:
            raise RunError(
                f"the {' and the '.join(bad)} at step {line['step']} (learning rate {line['learning_rate']:.3g}); take "
                "another run.name with a lower training.learning_rate, or go on from the last checkpoint without such "
                "steps: training.stop_on_bad_loss=false"
            )
    pending.clear()
    return asked > 0 and parts.run.must_save()


def evaluate(parts: Parts) -> dict[str, float]:
    """Loss and metrics over all validation rows, each counted once; the same dictionary on every rank."""
    from accelerate.utils import broadcast_object_list

    accelerator, task, plan = parts.accelerator, parts.config.model.task, parts.batches.validation_plan
    assert plan is not None
    began = time.perf_counter()
    parts.model.eval()
    gathered: list[Any] = []
    activity.mark("waiting for an evaluation batch")
    for number, batch in enumerate(parts.batches.validation()):
        activity.mark(f"evaluating batch {number + 1} of {plan.steps_per_epoch}")
        labels = batch["labels"].to(accelerator.device)
        with torch.no_grad(), accelerator.autocast():
            logits = parts.model(**inputs(batch, accelerator.device)).logits
        found = (batch["row"].to(accelerator.device), *outcome(task, logits, labels))
        gathered.append([part.cpu().numpy() for part in accelerator.gather_for_metrics(found)])
        parts.run.evaluating(number + 1, plan.steps_per_epoch)
    activity.mark("computing metrics")
    row, *values = (np.concatenate(part) for part in zip(*gathered, strict=True))
    # In the order of the file: float sums, and with them the metrics, are then the same on any number of workers.
    order = np.argsort(row, kind="stable")
    order = order[row[order] != FILL]
    assert len(order) == plan.rows, f"{len(order)} of {plan.rows} validation rows counted"
    metrics: list[dict[str, float]] = [{}]
    if accelerator.is_main_process:
        metrics[0] = judged(task, parts.scorer, [value[order] for value in values])
        metrics[0] |= {"eval_rows": plan.rows, "eval_seconds": time.perf_counter() - began}
    broadcast_object_list(metrics, from_process=0)
    return metrics[0]


def best_so_far(parts: Parts, state: State, metrics: dict[str, float]) -> tuple[State, bool]:
    """The state with an evaluation taken in, and whether it is the best so far. A NaN is never the best."""
    name, mode = parts.best
    if f"eval_{name}" not in metrics:
        raise RunError(f"metrics.best: {name} is not among what was measured: {sorted(metrics)}")
    value = metrics[f"eval_{name}"]
    better = not math.isnan(value) and (
        state.best is None or (value > state.best if mode == "max" else value < state.best)
    )
    entry = {"step": state.step, "epoch": state.step / parts.batches.plan.steps_per_epoch, **metrics}
    parts.run.log(entry)
    patience = parts.config.training.early_stopping_patience
    stale = 0 if better else state.stale + 1
    state = replace(
        state,
        history=[*state.history, entry],
        best=value if better else state.best,
        best_step=state.step if better else state.best_step,
        stale=stale,
        stopped_early=patience is not None and stale >= patience,
    )
    return state, better
