"""Train functions for tests/gloo/test_custom.py."""

from typing import Any

import torch

from pipeline import Context, activity


def as_built_in(context: Context) -> None:
    """The built-in loop, written down with what the context gives."""
    model = context.model()
    optimizer = context.optimizer(model)
    model, optimizer, scheduler = context.prepare(model, optimizer, context.scheduler(optimizer))
    for epoch in context.epochs():
        model.train()
        for batch in context.train:
            norm = torch.zeros(())
            with context.accumulate(model, batch):
                loss = model(**batch).loss * batch.share
                context.accelerator.backward(loss)
                if context.accelerator.sync_gradients:
                    norm = context.accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            context.log(loss=loss, grad_norm=norm)
        context.extra["epochs"] = [*context.extra.get("epochs", []), epoch]
        model.eval()
        losses, right, rows = torch.zeros(()), 0, 0
        for batch in context.validation:
            with torch.no_grad():
                logits = model(**batch).logits
            each = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
            each, found, wanted = context.gather(batch, each, logits.argmax(-1), batch["labels"])
            losses, right, rows = losses + each.sum(), right + int((found == wanted).sum()), rows + len(wanted)
        context.evaluated({"loss": losses / rows, "accuracy": right / rows})


def without_prepare(context: Context) -> None:
    """Never calls `prepare`."""
    context.model()


def leaves_a_step_unfinished(context: Context) -> None:
    """Breaks out of the loop at a micro-batch that does not end a step."""
    model = context.model()
    optimizer = context.optimizer(model)
    context.prepare(model, optimizer, context.scheduler(optimizer))
    for _ in context.epochs():
        for batch in context.train:
            if not batch.ends_step:
                break
        next(iter(context.train))


def stops_after_three_steps(context: Context) -> None:
    """Takes three steps and returns."""
    model = context.model()
    optimizer = context.optimizer(model)
    three_steps(context, model, optimizer)


def three_steps(context: Context, model: Any, optimizer: Any) -> None:
    """Prepares these, takes three steps and returns."""
    model, optimizer, scheduler = context.prepare(model, optimizer, context.scheduler(optimizer))
    for batch in context.train:
        loss = model(**batch).loss * batch.share
        context.accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        context.log(loss=loss)
        if context.step == 3:
            return


def notes_its_activity(context: Context) -> None:
    """Keeps what the watchdog would say of it at each batch."""
    model = context.model()
    optimizer = context.optimizer(model)
    model, optimizer, scheduler = context.prepare(model, optimizer, context.scheduler(optimizer))
    seen = context.extra["seen"] = []
    for batch in context.train:
        seen.append(activity.last().words())
        context.accelerator.backward(model(**batch).loss * batch.share)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    seen.extend(activity.last().words() for _ in context.validation)


def keeps_a_tensor(context: Context) -> None:
    """What a checkpoint cannot hold."""
    context.extra["seen"] = torch.zeros(2)
    stops_after_three_steps(context)


def logs_too_early(context: Context) -> None:
    """Logs before there is a step."""
    context.log(loss=1.0)


def prepared_twice(context: Context) -> None:
    """Leaves `accelerator.prepare` where it was."""
    model = context.model()
    model, optimizer = context.accelerator.prepare(model, context.optimizer(model))
    three_steps(context, model, optimizer)


def with_momentum(context: Context) -> None:
    """An optimizer that keeps other things than AdamW."""
    model = context.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    context.prepare(model, optimizer, context.scheduler(optimizer))


def with_a_plain_module(context: Context) -> None:
    """A model that cannot save itself."""
    model = torch.nn.Linear(2, 2)
    optimizer = context.optimizer(model)
    context.prepare(model, optimizer, context.scheduler(optimizer))


def with_amsgrad(context: Context) -> None:
    """AdamW that keeps more than others."""
    model = context.model()
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    context.prepare(model, optimizer, context.scheduler(optimizer))


number = 3


def of_two(context: Context, other: Any) -> None:
    """Takes more than a context."""
