"""From configuration to the parts of a loop: model, optimizer, schedule, batches, all prepared by Accelerate."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from pipeline import lora, schedule, strategy, tasks
from pipeline.checkpoint import Training
from pipeline.config import Config
from pipeline.data.batch import Collate
from pipeline.data.engine import Batches, Index, total_steps
from pipeline.data.inspect import Facts
from pipeline.errors import RunError
from pipeline.loop import Parts, Run, State
from pipeline.metrics import Scorer, best_of, names_of
from pipeline.model import load_model, load_tokenizer
from pipeline.strategy.pieces import Piece, holding, innermost

# Tensor cores of GPUs want lengths that are multiples of it.
GPU_MULTIPLE = 8


def training(config: Config, facts: Facts, accelerator: Any) -> Training:
    """Model, optimizer and tokenizer of a job, prepared as the strategy trains them; every rank calls it."""
    made = model(config, facts.labels, accelerator)
    return prepared(config, accelerator, made, optimizer(config, made), load_tokenizer(config.model, config.storage))


def prepared(config: Config, accelerator: Any, model: Any, optimizer: Any, tokenizer: Any) -> Training:
    """Through `prepare()`, with the proof that it did what was asked for.

    Raises:
        RunError: the strategy is not active, or a language model does not read documents as its loss needs it.
    """
    model, optimizer = strategy.prepare(config, accelerator, model, optimizer)
    strategy.prove_active(config, accelerator, model)
    if config.model.task == "causal-lm":
        tasks.prove_causal(model, accelerator.device, config.data.packing)
    return Training.of(config, accelerator, model, optimizer, tokenizer)


def model(config: Config, labels: list[str], accelerator: Any) -> Any:
    """The configured model; the first worker of a node goes first, so that each node fetches it once."""
    from accelerate.utils import set_seed

    # The new head's weights are random: the same seed gives the same start on any number of workers.
    set_seed(config.run.seed)
    with accelerator.local_main_process_first():
        made = load_model(config.model, config.storage, labels)
    if config.model.lora.r is not None:
        made = lora.adapted(made, config)
    if config.training.activation_checkpointing:
        # Without re-entrance: it needs no gradient at a layer's input, which adapters alone do not give.
        made.activation_checkpointing_enable({"use_reentrant": False})
    set_seed(config.run.seed, device_specific=True)
    return made


def optimizer(config: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW over what is trained of the model."""
    return strategy.adamw(config, _groups(model, config.training.weight_decay))


def _groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices only: biases and norms have one dimension."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in parameters if parameter.dim() > 1]
    plain = [parameter for parameter in parameters if parameter.dim() <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def _multiple(accelerator: Any) -> int:
    return GPU_MULTIPLE if accelerator.device.type == "cuda" else 1


def batches(
    config: Config, facts: Facts, accelerator: Any, tokenizer: Any, indices: dict[str, Index] | None
) -> Batches:
    """This rank's batches; `indices` are those of Ray Data's tokenised splits, None for the torch engine."""
    collate = Collate(tokenizer.pad_token_id or 0, _multiple(accelerator))
    keeping = replace(collate, keep_fill=True)
    if indices is None:
        from pipeline.data.torch_engine import TorchBatches

        return TorchBatches(config, facts, collate, keeping, accelerator)
    from pipeline.data.ray_engine import RayBatches

    return RayBatches(config, indices, collate, keeping, accelerator.num_processes)


def parts(
    config: Config, facts: Facts, accelerator: Any, training: Training, batches: Batches, state: State, run: Run
) -> Parts:
    """Build the schedule for all steps of the run, from the step of `state` on, and put all parts together."""
    steps = total_steps(config, batches.plan)
    how = config.training
    scheduler = schedule.build(
        innermost(training.optimizer), steps, how.warmup_ratio, how.lr_scheduler, min(state.step, steps)
    )
    # The optimizer has been prepared before: a checkpoint is put into what `prepare()` gave.
    scheduler = accelerator.prepare(scheduler)
    names = names_of(config.metrics, config.model.task)
    main = accelerator.is_main_process
    return Parts(
        config=config,
        accelerator=accelerator,
        model=training.model,
        optimizer=training.optimizer,
        scheduler=scheduler,
        batches=batches,
        steps=steps,
        scorer=Scorer(names, config.model.task, max(1, len(facts.labels)))
        if main and facts.label_type != "none"
        else None,
        best=best_of(config.metrics, config.model.task),
        run=run,
        multiple=_multiple(accelerator),
    )


def fingerprint(pieces: Iterable[Piece]) -> str:
    """sha256 over parameters, in order."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece.values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def agreed_fingerprint(training: Training) -> str:
    """The fingerprint that all ranks have, or that of all their shards; every rank calls it.

    Raises:
        RunError: the ranks' parameters differ, so that each has trained a model of its own.
    """
    from accelerate.utils import gather_object

    held = holding(training.model, training.optimizer)
    found = gather_object([fingerprint(held.weights())])
    if held.sharded:
        return hashlib.sha256("".join(found).encode()).hexdigest()
    if len(set(found)) > 1:
        raise RunError(f"the parameters of the ranks differ after training: {[text[:12] for text in found]}")
    return str(found[0])
