"""A train function of the user's own, `run.train_func: package.module:function`, in place of the built-in loop.

It is called on every worker with one `Context`, inside the same launch, data order, storage, resume and metrics:

    def train(context):
        model = context.model()                     # or any other
        optimizer = torch.optim.AdamW(model.parameters(), lr=context.config.training.learning_rate)
        scheduler = context.scheduler(optimizer)    # or any other, stepped once for each optimizer step
        model, optimizer, scheduler = context.prepare(model, optimizer, scheduler)
        for epoch in context.epochs():
            for batch in context.train:
                with context.accumulate(model, batch):
                    loss = model(**batch).loss * batch.share
                    context.accelerator.backward(loss)
                    optimizer.step(), scheduler.step(), optimizer.zero_grad()
                context.log(loss=loss)
            ...
            context.evaluated({"accuracy": ...})

All ranks run the same statements; what of it talks to the others is said with each method.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch

from pipeline import activity, assembly, schedule
from pipeline.assembly import GPU_MULTIPLE
from pipeline.checkpoint import Training
from pipeline.config import Config
from pipeline.custom_batches import MicroBatch, TrainBatches, ValidationBatches
from pipeline.data.engine import Batches, total_steps
from pipeline.data.facts import Facts
from pipeline.data.plan import FILL
from pipeline.errors import RunError
from pipeline.loop import Clock, Parts, Run, State, best_so_far
from pipeline.metrics import best_of
from pipeline.metrics.names import LESS_IS_BETTER
from pipeline.strategy import pieces, synchronised


def best(config: Config) -> tuple[str, str]:
    """Key and direction of the metric that chooses the best checkpoint: any name that `evaluated` is given."""
    if config.metrics.best is None:
        return best_of(config.metrics, config.model.task)
    key = config.metrics.best.removeprefix("eval_")
    return key, config.metrics.mode or ("min" if key in LESS_IS_BETTER else "max")


class Setup(Protocol):
    """What `Context.prepare` needs from the worker."""

    def __call__(self, model: Any, optimizer: Any) -> tuple[Training, State]:
        """Both prepared for the strategy, with the newest checkpoint in them, and its state."""


class Context:
    """What a train function works with.

    `config` is the whole configuration, `accelerator` the Accelerator of the strategy asked for, `tokenizer` and
    `labels` (class names in the order of their numbers) belong to the data. `train` and `validation` give batches.
    `extra` is a dictionary of JSON values of the function's own, kept in every checkpoint.
    """

    def __init__(
        self,
        config: Config,
        facts: Facts,
        accelerator: Any,
        tokenizer: Any,
        batches: Batches,
        run: Run,
        setup: Setup,
        ready: Callable[[Parts, Training], None],
    ) -> None:
        self.config, self.accelerator, self.tokenizer, self.labels = config, accelerator, tokenizer, facts.labels
        self.total_steps = total_steps(config, batches.plan)
        self.steps_per_epoch = batches.plan.steps_per_epoch
        self.multiple = GPU_MULTIPLE if accelerator.device.type == "cuda" else 1
        self.train, self.validation = TrainBatches(self, batches), ValidationBatches(self, batches)
        self.extra: dict[str, Any] = {}
        self.clock = Clock()
        self.training: Training
        self.resumed_step = 0
        self._state, self._batches, self._run, self._setup, self._ready = State(), batches, run, setup, ready
        self._parts: Parts | None = None
        self._saved, self._due, self._evaluated = 0, False, False

    @property
    def step(self) -> int:
        """Optimizer steps done, that of the last batch handed out included when the batch ends it."""
        return self._state.step

    @property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of each evaluation so far, those before a resume included."""
        return self._state.history

    @property
    def parts(self) -> Parts:
        """Model, optimizer and scheduler as `prepare` has made them."""
        if self._parts is None:
            raise RunError("run.train_func: context.prepare(model, optimizer, scheduler) has to be called first")
        return self._parts

    def model(self) -> Any:
        """The configured model (`model.path`), with a head for the labels, as the built-in loop trains it."""
        return assembly.model(self.config, self.labels, self.accelerator)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The built-in loop's: AdamW with the configured rate and weight decay."""
        return assembly.optimizer(self.config, model)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """The configured schedule over all steps of the run, to be stepped once for each optimizer step."""
        training = self.config.training
        return schedule.build(optimizer, self.total_steps, training.warmup_ratio, training.lr_scheduler)

    def prepare(self, model: Any, optimizer: Any, scheduler: Any) -> tuple[Any, Any, Any]:
        """In place of `accelerator.prepare`: the same, and what the newest checkpoint holds put into them.

        All ranks call it, once. Raises RunError where the strategy asked for is not the one that is active, and for a
        model or an optimizer that checkpoints cannot hold: better now than at the first of them.
        """
        assert self._parts is None, "context.prepare is called once"
        if not hasattr(pieces.bare(model), "save_pretrained"):
            kind = type(model).__name__
            raise RunError(
                f"run.train_func: the model is a {kind}, without save_pretrained; expected one of transformers"
            )
        steps = pieces.innermost(optimizer)  # of one that `accelerator.prepare` has had too
        amsgrad = any(group.get("amsgrad") for group in getattr(steps, "param_groups", ()))
        if amsgrad or not isinstance(steps, torch.optim.Adam):
            kind = f"{type(steps).__name__}{' with amsgrad' if amsgrad else ''}"
            raise RunError(
                f"run.train_func: the optimizer is {kind}; expected torch.optim.AdamW, as checkpoints keep it"
            )
        self.training, self._state = self._setup(model, optimizer)
        saved, inner = self._state.extra, pieces.innermost(self.training.optimizer)
        # It was built on the optimizer as it was; this one takes the steps.
        scheduler.optimizer = inner
        if self._state.step and "scheduler" in saved:
            schedule.restore(scheduler, saved["scheduler"])
        self._state = self._state.of_run(self.total_steps)
        model, optimizer = self.training.model, self.training.optimizer
        scheduler = self.accelerator.prepare(scheduler)
        self.extra.update(saved.get("own", {}))
        self.resumed_step = self._saved = self._state.step
        self._parts = Parts(
            config=self.config, accelerator=self.accelerator, model=model, optimizer=optimizer, scheduler=scheduler,
            batches=self._batches, steps=self.total_steps, scorer=None, best=best(self.config), run=self._run,
        )  # fmt: skip
        self._ready(self._parts, self.training)
        return model, optimizer, scheduler

    def epochs(self) -> Iterator[int]:
        """Numbers of the epochs that are left, from the one that a resumed run is in."""
        while not self.over:
            epoch, before = self.step // self.steps_per_epoch, self.step
            yield epoch
            if self.step == before:
                return

    @property
    def over(self) -> bool:
        """Whether all steps are done, or `training.early_stopping_patience` has run out."""
        return self.step >= self.total_steps or self._state.stopped_early

    @contextmanager
    def accumulate(self, model: Any, batch: MicroBatch) -> Iterator[None]:
        """In place of `accelerator.accumulate(model)`: gradients are averaged, and steps taken, where a batch ends one.

        In the block, `accelerator.sync_gradients` tells whether it does; if not, optimizer and scheduler do nothing.
        """
        scheduler = self.parts.scheduler
        step = scheduler.step
        if not batch.ends_step:
            scheduler.step = lambda *_, **__: None
        try:
            with synchronised(self.accelerator, model, batch.ends_step):
                yield
        finally:
            scheduler.step = step

    def log(self, loss: Any, **values: Any) -> None:
        """A line of `metrics.jsonl` for the optimizer step; all ranks call it after each batch.

        Tensors are averaged over the ranks, other numbers are rank 0's. `loss`, multiplied by the batch's share, is
        added up over the micro-batches of a step. Where a checkpoint is due it is saved before the next batch.

        Raises:
            RunError: the loss is NaN or infinite, and `training.stop_on_bad_loss` is set.
        """
        line = self.train.logged(loss)
        if line is None:
            return
        values = {"loss": line.pop("loss"), **values}
        tensors = {name: _whole(value) for name, value in values.items() if isinstance(value, torch.Tensor)}
        asks = torch.tensor(float(self._run.check_due()), device=self.accelerator.device)
        stacked = torch.stack([*(value.to(asks.device).reshape(()) for value in tensors.values()), asks])
        *means, asked = self.accelerator.reduce(stacked, reduction="mean").tolist()
        values |= dict(zip(tensors, means, strict=True))
        self._run.log(line | {name: float(value) for name, value in values.items()})
        if self.config.training.stop_on_bad_loss and not math.isfinite(values["loss"]):
            raise RunError(f"the loss is {values['loss']} at step {self.step}")
        every = self.config.checkpoint.every
        at_end = self.step % self.steps_per_epoch == 0
        self._due |= at_end if every == "epoch" else self.step % int(every) == 0
        self._due |= asked > 0 and self._run.must_save()

    def gather(self, batch: MicroBatch, *tensors: torch.Tensor) -> Any:
        """In place of `accelerator.gather_for_metrics`: the values of all ranks' rows, each validation row once.

        All ranks call it for each batch. Tensors have a row for each of the batch's, and the same other sizes on all
        ranks.
        """
        row, *found = self.accelerator.gather((batch.row, *tensors))
        kept = [value[row != FILL] for value in found]
        self.validation.counted += int((row != FILL).sum())
        return kept[0] if len(kept) == 1 else tuple(kept)

    def evaluated(self, metrics: dict[str, Any]) -> None:
        """Keep the metrics of an evaluation (rank 0's count), as `eval_NAME`; all ranks call it.

        The best by `metrics.best` and `metrics.mode` is saved before the next batch.

        Raises:
            RunError: `metrics.best` is not among them.
        """
        from accelerate.utils import broadcast_object_list

        named = {f"eval_{name.removeprefix('eval_')}": float(value) for name, value in metrics.items()}
        if self.validation.counted:
            named["eval_rows"] = self.validation.counted
            self.validation.counted = 0
        shared = [named]
        broadcast_object_list(shared, from_process=0)
        self._state, better = best_so_far(self.parts, self._state, shared[0])
        self._evaluated = True
        self._due |= better or self._state.stopped_early

    def save(self) -> None:
        """Save a checkpoint before the next batch, whatever `checkpoint.every` says; all ranks call it."""
        self._due = True

    def flush(self) -> None:
        """Save and report what is due.

        Raises:
            RunError: `extra` cannot be saved.
        """
        if not (self._due or self._evaluated):
            return
        if self._due:
            try:
                own = json.loads(json.dumps(dict(self.extra)))
            except (TypeError, ValueError) as error:
                raise RunError(f"run.train_func: context.extra holds what JSON cannot: {error}") from error
            self._state = replace(self._state, extra={"scheduler": schedule.state(self.parts.scheduler), "own": own})
            self._saved = self.step
        extra_s = self.config.checkpoint.upload_timeout_s
        activity.mark("saving" if self._due else "reporting", self.step, extra_s)
        self._run.report(self._state, self._due)
        self._due = self._evaluated = False

    def finish(self) -> State:
        """After the function has returned: the last checkpoint, and the state reached."""
        if self._parts is None or self.step == 0:
            raise RunError(f"run.train_func: {self.config.run.train_func} returned without a step of context.train")
        self._due |= self.step > self._saved
        self._state = replace(self._state, stopped_early=self.step < self.total_steps)
        self.flush()
        return self._state

    def advance(self, step: int) -> None:
        """Note the steps done; the batches call it."""
        self._state = replace(self._state, step=step)


def _whole(value: torch.Tensor) -> torch.Tensor:
    """In float32; under FSDP2 a gradient norm comes as parts of it on all ranks."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach().float()
