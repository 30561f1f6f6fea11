"""What the processes of a world run under FSDP and DeepSpeed; runs lie in a local store, as workers leave them."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pipeline import assembly, checkpoint, loop, strategy
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.local_store import LocalStore
from pipeline.strategy.pieces import holding
from pipeline.tasks import inputs
from tests.gloo.cases import Lines


class Saving(Lines):
    """Saves the loop's checkpoints into a store, each rank its own files."""

    def __init__(self, run: str | None) -> None:
        super().__init__()
        self.store = LocalStore(Path(run)) if run else None
        self.seconds: dict[str, float] = {}
        self.files: list[str] = []

    def report(self, state: loop.State, save: bool) -> None:
        if not save or self.store is None:
            return
        began = time.monotonic()
        accelerator = self.training.accelerator
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.save(Path(folder), self.training, state.to_json())
            self.files = [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()]
            checkpoint.upload(
                self.store, Path(folder), checkpoint.Name(1, state.step), accelerator.process_index,
                accelerator.num_processes, {"step": state.step}, 60, lambda: None,
            )  # fmt: skip
        accelerator.wait_for_everyone()
        self.seconds["save"] = time.monotonic() - began


def train(
    config: dict[str, Any],
    facts: dict[str, Any],
    run: str | None = None,
    resume: int | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train as a worker does, from the checkpoint of a step on with `resume`; what came of it on this rank."""
    job, found = Config.model_validate(config), Facts.from_json(facts)
    accelerator = strategy.accelerator(job, _device(device))
    training = assembly.training(job, found, accelerator)
    saving, state = Saving(run if resume is None else None), loop.State()
    if resume is not None:
        began = time.monotonic()
        assert run is not None
        state = _resumed(LocalStore(Path(run)), resume, training)
        saving.seconds["load"] = time.monotonic() - began
    batches = assembly.batches(job, found, accelerator, training.tokenizer, None)
    parts = assembly.parts(job, found, accelerator, training, batches, state, saving)
    saving.training = training
    first = state.step
    state = loop.fit(parts, state, loop.Clock())
    mine, whole = strategy.held(training.model)
    kept = holding(training.model, training.optimizer)
    return {
        "losses": [line["loss"] for line in saving.lines if "learning_rate" in line],
        "norms": [line["grad_norm"] for line in saving.lines if "learning_rate" in line],
        "rates": [line["learning_rate"] for line in saving.lines if "learning_rate" in line],
        "history": [{key: value for key, value in entry.items() if key != "eval_seconds"} for entry in state.history],
        "seconds": saving.seconds | {"evaluate": max((entry["eval_seconds"] for entry in state.history), default=0.0)},
        "files": saving.files,
        "print": assembly.agreed_fingerprint(training),
        "first": first,
        "micro_batches": [batches.plan.step(step).micro_batches for step in range(batches.plan.steps_per_epoch)],
        "held": (mine, whole),
        "trained": sum(piece.values.numel() for piece in kept.moments()),
        # Those of a language model have another width on each rank.
        "logits": [] if job.model.task == "causal-lm" else _logits(parts),
    }


def _device(kind: str) -> torch.device:
    """This rank's; a process has taken its GPU before Accelerate looks for one, as Ray does."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def _resumed(store: LocalStore, step: int, training: checkpoint.Training) -> loop.State:
    """As a worker of Ray does it, which fetches once on each node and only its own files where it can."""
    from pipeline.attempt import resumed
    from pipeline.reporter import Place
    from pipeline.run import RunFolder

    accelerator = training.accelerator
    rank, local, size = accelerator.process_index, accelerator.local_process_index, accelerator.num_processes
    place = Place(rank, local, size, accelerator.device)
    with tempfile.TemporaryDirectory() as folder:
        return resumed(RunFolder(store), str(checkpoint.Name(1, step)), training, place, Path(folder))


def _logits(parts: loop.Parts) -> list[list[float]]:
    """Of the validation rows, in the order of their file."""
    parts.model.eval()
    found: dict[int, list[float]] = {}
    for batch in parts.batches.validation():
        with torch.no_grad(), parts.accelerator.autocast():
            logits = parts.model(**inputs(batch, parts.accelerator.device)).logits.float()
        rows, values = parts.accelerator.gather_for_metrics((batch["row"].to(logits.device), logits))
        found |= dict(zip(rows.tolist(), values.tolist(), strict=True))
    return [found[row] for row in sorted(found) if row >= 0]


def regress(config: dict[str, Any], epochs: int = 6) -> list[float]:
    """A linear regression through the same calls as the loop's: its loss in each epoch, over all ranks."""
    job = Config.model_validate(config)
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
    optimizer: Any = strategy.adamw(job, [{"params": list(model.parameters())}])
    prepared, optimizer = strategy.prepare(job, accelerator, model, optimizer)
    strategy.prove_active(job, accelerator, prepared)
    inputs = torch.randn(64, 8)
    wanted = inputs @ torch.linspace(-1, 1, 8).unsqueeze(1)
    losses = []
    for _ in range(epochs):
        total = torch.zeros(())
        for start in range(0, 64, 16):
            mine = slice(start + accelerator.process_index, start + 16, accelerator.num_processes)
            with strategy.synchronised(accelerator, prepared, last=True), accelerator.autocast():
                dtype = torch.bfloat16 if job.training.mixed_precision == "bf16" else torch.float32
                loss = ((prepared(inputs[mine].to(dtype)).float() - wanted[mine]) ** 2).sum() / 16
                strategy.backward(accelerator, prepared, loss * accelerator.num_processes)
            strategy.gradient_norm(accelerator, prepared, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        losses.append(float(accelerator.reduce(total)))
    return losses


def dropped_plugin(config: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """What the proof says of an Accelerator that has quietly dropped its FSDP plugin."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    from pipeline.errors import RunError

    job = Config.model_validate(config)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model: Any = torch.nn.Linear(4, 4)
    prepared = accelerator.prepare(model)
    try:
        strategy.prove_active(job, accelerator, prepared)
    except RunError as error:
        return error.problems
    return []


PREDICT = """
import json, sys
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, texts = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    found = [model(**tokenizer(text, return_tensors="pt")).logits[0].tolist() for text in texts]
ours = sorted(name for name in sys.modules if name.startswith("pipeline"))
print(json.dumps([found, sum(parameter.numel() for parameter in model.parameters()), ours]))
"""


def read_texts(file: str) -> list[str]:
    """The texts of a CSV file of ours."""
    import csv

    with Path(file).open(newline="", encoding="utf-8") as rows:
        return [row["text"] for row in csv.DictReader(rows)]


def predicted(folder: Path, texts: list[str]) -> tuple[list[list[float]], int]:
    """Logits of an exported model, and the number of its parameters, from a process that has none of our code."""
    import subprocess
    import sys

    command = [sys.executable, "-I", "-c", PREDICT, str(folder), json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, cwd=folder)
    logits, parameters, ours = json.loads(done.stdout.splitlines()[-1])
    assert ours == []
    return logits, parameters
