"""Training in which one rank's loss or gradient is no number at a chosen step."""

from pathlib import Path
from typing import Any

import torch

from pipeline import assembly, loop, strategy
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.errors import RunError
from tests.gloo.cases import Collected


def train(config: dict[str, Any], facts: dict[str, Any], folder: str, spoil: str, at: int) -> dict[str, Any]:
    """Train with rank 1's logits times NaN or infinity (`nan`, `inf`) or their gradient NaN (`gradient`) in step `at`.

    For jobs of one micro-batch a step.
    """
    job, found = Config.model_validate(config), Facts.from_json(facts)
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    training = assembly.training(job, found, accelerator)
    batches = assembly.batches(job, found, accelerator, training.tokenizer, None)
    run = Collected(folder)
    parts = assembly.parts(job, found, accelerator, training, batches, loop.State(), run)
    run.training = training
    model, done = accelerator.unwrap_model(parts.model), 0

    def after_forward(_: Any, __: Any, output: Any) -> Any:
        nonlocal done
        done += torch.is_grad_enabled()
        if done == at and torch.is_grad_enabled() and accelerator.process_index == 1:
            if spoil == "gradient":
                output.logits.register_hook(lambda gradient: gradient * float("nan"))
            else:
                output.logits = output.logits * float(spoil)
        return output

    model.register_forward_hook(after_forward)
    problem = None
    try:
        loop.fit(parts, loop.State(), loop.Clock())
    except RunError as error:
        problem = str(error)
    return {
        "problem": problem,
        "steps": [line for line in run.lines if "learning_rate" in line],
        "saved": sorted(path.name for path in Path(folder).iterdir()),
        "finite": all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()),
        "print": assembly.agreed_fingerprint(training) if problem is None else None,
        "total": parts.steps,
        "final_rate": parts.scheduler.get_last_lr()[0],
    }
