"""The proof that what was asked for is what is active."""

import logging
from typing import Any

import torch

from pipeline.config import Config
from pipeline.errors import RunError
from pipeline.strategy import zero
from pipeline.strategy_config import Strategy

LOGGER = logging.getLogger("pipeline")


def prove(accelerator: Any, rank: int, local_rank: int, world_size: int, device: torch.device) -> None:
    """Compare what Accelerate sees with what Ray has started.

    Raises:
        RunError: they disagree, so that training would silently be another than the one asked for.
    """
    same_device = accelerator.device.type == device.type and (
        device.index is None or accelerator.device.index in (None, device.index)
    )
    pairs = [
        ("world size", world_size, accelerator.num_processes, accelerator.num_processes == world_size),
        ("rank", rank, accelerator.process_index, accelerator.process_index == rank),
        ("local rank", local_rank, accelerator.local_process_index, accelerator.local_process_index == local_rank),
        ("device", device, accelerator.device, same_device),
    ]
    wrong = [f"{name}: Ray has {ray}, Accelerate has {found}" for name, ray, found, same in pairs if not same]
    if wrong:
        raise RunError(*wrong)


def held(model: Any) -> tuple[int, int]:
    """Elements of the parameters that this rank keeps between steps, and of the whole model."""
    mine = whole = 0
    if type(model).__name__ == "FullyShardedDataParallel":
        flats = [module._handle.flat_param for module in type(model).fsdp_modules(model) if module._handle]
        return sum(flat.numel() for flat in flats), sum(flat._unpadded_unsharded_size.numel() for flat in flats)
    from torch.distributed.fsdp import FSDPModule

    for inner in model.modules():
        if isinstance(inner, FSDPModule):
            inner.reshard()  # some are gathered after an evaluation
    for parameter in _module(model).parameters():
        if hasattr(parameter, "ds_tensor"):  # ZeRO-3
            mine += parameter.ds_tensor.numel()
            whole += parameter.ds_numel
        else:
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            mine += local.numel()
            whole += parameter.numel()
    return mine, whole


def _module(model: Any) -> Any:
    return model.module if zero.is_engine(model) else model


def prove_active(config: Config, accelerator: Any, model: Any) -> None:
    """After `prepare()`: the prepared model is what `strategy` asks for.

    Raises:
        RunError: it is another, so that training would silently differ from what was asked for.
    """
    strategy, size = config.strategy, accelerator.num_processes
    if strategy.kind == "ddp":
        wrong = _ddp(size, model)
    elif strategy.kind == "fsdp":
        wrong = _fsdp(strategy.version, model)
        if strategy.activation_checkpointing and not any(
            "_checkpoint_wrapped" in name for name, _ in model.named_modules()
        ):
            wrong.append("no layer recomputes its activations")
    else:
        LOGGER.info("deepspeed: configuration %s", accelerator.deepspeed_plugin.deepspeed_config)
        wrong = _deepspeed(strategy, model)
    shards = strategy.kind == "fsdp" or (strategy.kind == "deepspeed" and strategy.zero_stage == 3)
    if shards and not wrong:
        mine, whole = held(model)
        # Uneven shards and padding: a parameter is cut into equal parts, rounded up, or by whole rows.
        if size > 1 and mine > 0.9 * whole:
            wrong.append(f"rank {accelerator.process_index} holds {mine:,} of {whole:,} parameters, nearly all of them")
        LOGGER.info("%s: this rank holds %s of %s parameters", strategy.kind, f"{mine:,}", f"{whole:,}")
    if wrong:
        raise RunError(*(f"strategy.kind: {strategy.kind} was asked for, but {words}" for words in wrong))


def _ddp(size: int, model: Any) -> list[str]:
    wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    if size > 1 and not wrapped:
        return [f"the prepared model is a {type(model).__name__}"]
    return []


def _fsdp(version: int, model: Any) -> list[str]:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    if version == 1:
        if not isinstance(model, FullyShardedDataParallel):
            return [f"the prepared model is a {type(model).__name__}"]
        return []
    if not isinstance(model, FSDPModule):
        return [f"the prepared model is a {type(model).__name__}"]
    plain = [name for name, parameter in model.named_parameters() if not isinstance(parameter, DTensor)]
    sharded = sum(isinstance(module, FSDPModule) for module in model.modules())
    wrong = [f"{plain[0]} and {len(plain) - 1} other parameters are not sharded"] if plain else []
    if sharded < 2:
        wrong.append("none of its layers is sharded by itself; name their classes in strategy.wrap")
    return wrong


def _deepspeed(strategy: Strategy, model: Any) -> list[str]:
    if not zero.is_engine(model):
        return [f"the prepared model is a {type(model).__name__}"]
    wrong = []
    if model.zero_optimization_stage() != strategy.zero_stage:
        wrong.append(f"the stage is {model.zero_optimization_stage()}, not {strategy.zero_stage}")
    if model.gradient_accumulation_steps() != 1:
        wrong.append(f"DeepSpeed divides by {model.gradient_accumulation_steps()} accumulation steps, not by 1")
    for name, asked, found in (
        ("offload_optimizer", strategy.offload_optimizer, model.zero_offload_optimizer()),
        ("offload_parameters", strategy.offload_parameters, model.zero_offload_param()),
    ):
        device = "none" if found is None else str(getattr(found.device, "value", found.device))
        if (asked or "none") != device:
            wrong.append(f"{name} is {device}, not {asked}")
    return wrong
