"""The batches that a train function of the user's own iterates over (`pipeline/custom.py`)."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from pipeline import activity
from pipeline.data.batch import Batch
from pipeline.data.engine import Batches
from pipeline.errors import RunError
from pipeline.loop import seed_step
from pipeline.tasks import inputs

if TYPE_CHECKING:
    from pipeline.custom import Context


class MicroBatch(dict[str, Any]):
    """Arguments of the model, labels among them, on this rank's device.

    `share` is what the mean loss of these rows is multiplied by so that the gradients, averaged over the ranks and
    added up over the micro-batches, are those of the mean over the whole global batch, however unevenly its rows are
    spread. `ends_step` tells whether the optimizer takes its step after it. `row` and `weight`, of shape (rows,), are
    row number (FILL for a row that only fills up) and loss weight.
    """

    def __init__(self, given: Batch, device: torch.device, step_weight: float, ranks: int, ends_step: bool) -> None:
        super().__init__(inputs(given, device), labels=given["labels"].to(device))
        self.row, self.weight = given["row"].to(device), given["weight"].to(device)
        self.share = float(given["weight"].sum()) * ranks / (step_weight or 1.0)
        self.ends_step = ends_step


class TrainBatches:
    """Micro-batches of this rank; each iteration over it is what is left of an epoch."""

    def __init__(self, context: "Context", batches: Batches) -> None:
        self._context, self._batches = context, batches
        self._source: Iterator[Batch] | None = None
        self._whole = True  # whether the last step's micro-batches were all handed out
        self._line: dict[str, Any] = {}
        self._loss: Any = 0.0
        self._ends = True

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        plan = self._batches.plan
        last = plan.steps_per_epoch - 1
        return (
            sum(plan.step(step).micro_batches for step in (0, last)[: plan.steps_per_epoch])
            + max(0, last - 1) * plan.step(0).micro_batches
        )

    def __iter__(self) -> Iterator[MicroBatch]:
        context, plan, clock = self._context, self._batches.plan, self._context.clock
        scheduler = context.parts.scheduler
        if not self._whole:
            raise RunError("run.train_func: the loop over context.train was left in the middle of an optimizer step")
        if self._source is None:
            self._source = self._batches.train(context.step) if not context.over else iter(())
        end = min(context.total_steps, (context.step // plan.steps_per_epoch + 1) * plan.steps_per_epoch)
        while context.step < end and not context.over:
            context.flush()
            number, began, waited = context.step, time.perf_counter(), clock.waiting
            step = plan.step(number, context.multiple)
            rate, self._loss, self._whole = scheduler.get_last_lr()[0], 0.0, False
            for micro in range(step.micro_batches):
                asked = time.perf_counter()
                activity.mark("waiting for a batch", number + 1)
                given = next(self._source)
                clock.waiting += time.perf_counter() - asked
                if micro == 0:
                    seed_step(context.config.run.seed, number, context.accelerator.process_index)
                self._ends = micro + 1 == step.micro_batches
                if self._ends:
                    context.advance(number + 1)
                    self._whole = True
                self._line = {"began": began, "waited": clock.waiting - waited, "rate": rate, "step": step}
                activity.mark("in run.train_func")
                yield MicroBatch(
                    given, context.accelerator.device, step.weight, context.accelerator.num_processes, self._ends
                )
            clock.stepping += time.perf_counter() - began

    def logged(self, loss: Any) -> dict[str, Any] | None:
        """The line of the step that ends, None while it has micro-batches to come; `loss` is added up."""
        if not self._line:
            raise RunError("run.train_func: context.log is for after a batch of context.train, and none was taken")
        self._loss = self._loss + (loss.detach() if isinstance(loss, torch.Tensor) else loss)
        if not self._ends:
            return None
        context, found = self._context, self._line
        step, seconds = found["step"], time.perf_counter() - found["began"]
        return {
            "step": context.step,
            "epoch": context.step / context.steps_per_epoch,
            "learning_rate": found["rate"],
            "loss": self._loss,
            "samples_per_second": len(step.rows) / seconds,
            "tokens_per_second": step.tokens / seconds,
            "padding_ratio": 1 - step.tokens / step.padded_tokens,
            "data_wait_share": found["waited"] / seconds,
        }


class ValidationBatches:
    """Validation batches of this rank, filled up so that all ranks have as many; `Context.gather` drops the fill."""

    def __init__(self, context: "Context", batches: Batches) -> None:
        self._context, self._batches, self.counted = context, batches, 0

    def __len__(self) -> int:
        """Batches of an evaluation; 0 without validation rows."""
        plan = self._batches.validation_plan
        return plan.steps_per_epoch if plan else 0

    def __iter__(self) -> Iterator[MicroBatch]:
        self.counted = 0
        accelerator = self._context.accelerator
        activity.mark("waiting for an evaluation batch")
        for number, given in enumerate(self._batches.validation() if len(self) else ()):
            activity.mark(f"in run.train_func, evaluation batch {number + 1} of {len(self)}")
            yield MicroBatch(given, accelerator.device, 1.0, 1, ends_step=False)
