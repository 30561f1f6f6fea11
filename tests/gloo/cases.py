"""What the processes of a world run."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import assembly, checkpoint, loop, strategy
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.strategy.pieces import holding


class Lines:
    """Keeps the loop's lines, and is never told to save."""

    training: checkpoint.Training

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def log(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def evaluating(self, done: int, total: int) -> None:
        pass

    def check_due(self) -> bool:
        return False

    def must_save(self) -> bool:
        return False


class Collected(Lines):
    """Saves the loop's checkpoints into a folder that all ranks share."""

    def __init__(self, folder: str | None) -> None:
        super().__init__()
        self.folder = folder

    def report(self, state: loop.State, save: bool) -> None:
        if save and self.folder:
            target = Path(self.folder) / f"step-{state.step}"
            checkpoint.save(target, self.training, state.to_json())


def train(
    config: dict[str, Any],
    facts: dict[str, Any],
    folder: str | None = None,
    resume: str | None = None,
    ask: str | None = None,
) -> Any:
    """Train as a worker does; what came of it on this rank, with the logits for `ask` if it is given."""
    job, found = Config.model_validate(config), Facts.from_json(facts)
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    training = assembly.training(job, found, accelerator)
    state = loop.State()
    if resume:
        state = loop.State(**checkpoint.load(Path(resume), training))
    batches = assembly.batches(job, found, accelerator, training.tokenizer, None)
    used = _recorded(batches)
    run = Collected(folder)
    parts = assembly.parts(job, found, accelerator, training, batches, state, run)
    run.training = training
    first = state.step
    state = loop.fit(parts, state, loop.Clock())
    exported = tempfile.mkdtemp()
    if training.layout == "full":
        weights, _ = holding(training.model, training.optimizer).whole(keep=accelerator.is_main_process)
        if accelerator.is_main_process:
            training.module.save_pretrained(exported, state_dict=weights)
            training.tokenizer.save_pretrained(exported)
    return {
        "steps": [line for line in run.lines if "learning_rate" in line],
        "history": state.history,
        "final_rate": parts.scheduler.get_last_lr()[0],
        "print": assembly.agreed_fingerprint(training),
        "rows": used,
        "first": first,
        "processes": accelerator.num_processes,
        "plan": [parts.batches.plan.step_rows(step) for step in range(parts.steps)],
        "per_epoch": parts.batches.plan.steps_per_epoch,
        "exported": exported,
        "stopped_early": state.stopped_early,
        "logits": _logits(training.module, training.tokenizer, ask),
    }


def _logits(model: Any, tokenizer: Any, text: str | None) -> Any:
    if text is None:
        return None
    with torch.no_grad():
        return model.eval()(**tokenizer(text, return_tensors="pt")).logits.tolist()


def own(
    config: dict[str, Any],
    facts: dict[str, Any],
    folder: str | None = None,
    resume: str | None = None,
    module_in: str | None = None,
) -> dict[str, Any]:
    """Train by `run.train_func`, as a worker does; its module may lie in the folder `module_in`."""
    import sys

    from pipeline import custom, train_func
    from pipeline.model import load_tokenizer

    job, found = Config.model_validate(config), Facts.from_json(facts)
    assert job.run.train_func is not None
    if module_in is not None:
        sys.path.insert(0, module_in)
    function = train_func.resolve(job.run.train_func)
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    tokenizer = load_tokenizer(job.model, job.storage)
    batches = assembly.batches(job, found, accelerator, tokenizer, None)
    used = _recorded(batches)
    run = Collected(folder)

    def setup(model: Any, optimizer: Any) -> tuple[checkpoint.Training, loop.State]:
        training = assembly.prepared(job, accelerator, model, optimizer, tokenizer)
        return training, loop.State(**checkpoint.load(Path(resume), training)) if resume else loop.State()

    def ready(_: loop.Parts, training: checkpoint.Training) -> None:
        run.training = training

    context = custom.Context(job, found, accelerator, tokenizer, batches, run, setup, ready)
    function(context)
    state = context.finish()
    return {
        "steps": [line for line in run.lines if "learning_rate" in line],
        "history": state.history,
        "final_rate": context.parts.scheduler.get_last_lr()[0],
        "print": assembly.agreed_fingerprint(context.training),
        "rows": used,
        "first": context.resumed_step,
        "state": state.to_json(),
        "clock": (context.clock.waiting, context.clock.stepping),
        "micro_batches": len(context.train),
    }


def _recorded(batches: Any) -> list[int]:
    """Row numbers of all training batches, in the order in which they are taken."""
    used: list[int] = []
    original = batches.train

    def train(step: int) -> Any:
        for batch in original(step):
            used.extend(row for row in batch["row"].tolist() if row >= 0)
            yield batch

    batches.train = train
    return used


def _plain_optimizer(model: torch.nn.Module, job: Config) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": job.training.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=job.training.learning_rate)


def _set_plain_rate(optimizer: torch.optim.Optimizer, job: Config, step: int, total: int) -> None:
    warmup = int(total * job.training.warmup_ratio)
    share = (step + 1) / (warmup + 1) if step < warmup else (total - step) / (total - warmup)
    for group in optimizer.param_groups:
        group["lr"] = job.training.learning_rate * share


def losses_of_a_plain_loop(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The same training written down plainly: one process, whole batches, no Accelerate, no code of ours in a step."""
    from accelerate.utils import set_seed

    from pipeline.data.batch import Collate
    from pipeline.data.torch_engine import Rows, tokenised
    from pipeline.model import load_model, load_tokenizer

    job, found = Config.model_validate(config), Facts.from_json(facts)
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    batches: Any = assembly.batches(job, found, accelerator, load_tokenizer(job.model, job.storage), None)
    set_seed(job.run.seed)
    model = load_model(job.model, job.storage, found.labels)
    rows = Rows(tokenised(job, found, "train"), batches.plan)
    optimizer = _plain_optimizer(model, job)
    total = job.training.epochs * batches.plan.steps_per_epoch
    losses = []
    model.train()
    for step in range(total):
        _set_plain_rate(optimizer, job, step, total)
        batch = Collate(0)(rows.__getitems__(batches.plan.step_rows(step).tolist()))
        loss = torch.nn.functional.cross_entropy(
            model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": np.asarray(losses)}


def losses_of_documents_alone(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """A language model trained plainly: one process, each document in a forward of its own, transformers' own loss."""
    from accelerate.utils import set_seed

    from pipeline.data.torch_engine import tokenised
    from pipeline.model import load_model, load_tokenizer

    job, found = Config.model_validate(config), Facts.from_json(facts)
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    batches: Any = assembly.batches(job, found, accelerator, load_tokenizer(job.model, job.storage), None)
    set_seed(job.run.seed)
    model = load_model(job.model, job.storage, [])
    optimizer = _plain_optimizer(model, job)
    total = job.training.epochs * batches.plan.steps_per_epoch
    losses = []
    model.train()
    rows = tokenised(job, found, "train")
    for step in range(total):
        _set_plain_rate(optimizer, job, step, total)
        chosen = [rows[number] for number in batches.plan.step_rows(step).tolist()]
        tokens = sum(sum(row["target"]) for row in chosen)
        loss = torch.zeros(())
        for row in chosen:
            part = _loss_of_documents(model, row) / tokens
            part.backward()
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    held = list(tokenised(job, found, "validation"))
    with torch.no_grad():
        whole = sum(float(_loss_of_documents(model, row)) for row in held)
    tokens = sum(sum(row["target"]) for row in held)
    return {"losses": np.asarray(losses), "eval_loss": whole / tokens, "eval_tokens": tokens}


def _loss_of_documents(model: Any, row: dict[str, Any]) -> torch.Tensor:
    """Sum of the losses of a row's tokens that count, document by document."""
    at, loss = 0, torch.zeros(())
    for size in row["documents"]:
        ids = torch.tensor([row["input_ids"][at : at + size]])
        counts = torch.tensor([row["target"][at : at + size]])
        loss = loss + model(input_ids=ids, labels=ids.masked_fill(counts == 0, -100)).loss * counts.sum()
        at += size
    return loss
