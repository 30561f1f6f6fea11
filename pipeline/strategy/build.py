"""Configuration -> Accelerator, and model and optimizer through `prepare()`."""

import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from pipeline.config import Config
from pipeline.strategy import fsdp, zero, zero_config

# Accelerate takes a plugin from these when none is given, and leaves them set when one was.
SWITCHES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION")


def accelerator(config: Config, device: torch.device) -> Any:
    """An Accelerator on the processes and the device that Ray has set up.

    Its own gradient accumulation stays at 1: the loop weighs the loss over the whole global batch itself, as
    dividing by a fixed number is wrong for the short last accumulation.
    """
    from accelerate.utils import DataLoaderConfiguration
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    for name in SWITCHES:
        os.environ.pop(name, None)
    settings = {
        # A prepared scheduler would otherwise step once for each process.
        "step_scheduler_with_optimizer": False,
        # The sampler fills up the last batch itself.
        "dataloader_config": DataLoaderConfiguration(even_batches=False),
    }
    if config.strategy.kind == "deepspeed":
        made = zero.accelerator(config, device, settings)
        # With ZeRO-3 transformers would now shard while it loads, in collectives that all ranks have to enter. But the
        # first rank of a node loads before the others, and random weights must be the same on all. `prepare()` shards.
        unset_hf_deepspeed_config()
        return made
    unset_hf_deepspeed_config()
    settings["mixed_precision"] = config.training.mixed_precision
    if config.strategy.kind == "fsdp":
        return fsdp.accelerator(config, device, settings)
    from accelerate import Accelerator

    # Without `cpu`, processes without a GPU each see a world of one and train a model of their own.
    return Accelerator(cpu=device.type == "cpu", **settings)


def adamw(config: Config, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """AdamW over parameter groups, fused where DeepSpeed keeps its moments in the memory of the CPU."""
    settings = {"lr": config.training.learning_rate, **zero_config.moments(config)}
    if config.strategy.kind == "deepspeed" and config.strategy.offload_optimizer == "cpu":
        settings["fused"] = True
    return torch.optim.AdamW(groups, **settings)


def prepare(
    config: Config, accelerator: Any, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[torch.nn.Module, Any]:
    """Model and optimizer as the strategy trains them.

    Raises:
        RunError: the model has no such layers as `strategy.wrap` names.
    """
    if config.strategy.kind == "fsdp":
        fsdp.choose_layers(config, accelerator, model)
    elif config.strategy.kind == "deepspeed":
        zero.build_operators(accelerator)
    prepared: tuple[torch.nn.Module, Any] = accelerator.prepare(model, optimizer)
    return prepared


@contextmanager
def _local(accelerator: Any, model: Any) -> Iterator[None]:
    with accelerator.no_sync(model):
        yield


def synchronised(accelerator: Any, model: Any, last: bool) -> AbstractContextManager[None]:
    """The block of one micro-batch: only in the last of a step gradients are averaged over the ranks.

    However many micro-batches the step has: counting to a fixed number, as `accumulate()` does, would miss the short
    last step of an epoch.
    """
    accelerator.gradient_state._set_sync_gradients(last)
    if zero.is_engine(model):
        model.set_gradient_accumulation_boundary(last)
        return nullcontext()
    return nullcontext() if last else _local(accelerator, model)


def backward(accelerator: Any, model: Any, loss: torch.Tensor) -> None:
    """Add the gradients of a micro-batch's loss to those of its step."""
    if zero.is_engine(model):
        model.backward(loss)
    else:
        accelerator.backward(loss)


def gradient_norm(accelerator: Any, model: Any, limit: float | None) -> torch.Tensor:
    """Clip the gradients of a step to a norm of `limit`, and give the norm that they had, over all ranks, unscaled.

    DeepSpeed clips in its own step, which is taken here; its optimizer's `step()` does nothing then.
    """
    if zero.is_engine(model):
        return zero.step(model)
    found = accelerator.clip_grad_norm_(model.parameters(), math.inf if limit is None else limit)
    return found.full_tensor() if hasattr(found, "full_tensor") else found
