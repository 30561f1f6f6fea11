"""FSDP: the plugin, the layers that are sharded one by one, and how Accelerate is made to use it on CPUs."""

import logging
import os
from collections import Counter
from typing import Any

import torch

from pipeline.config import Config
from pipeline.errors import UserError

LOGGER = logging.getLogger("pipeline")


def accelerator(config: Config, device: torch.device, settings: dict[str, Any]) -> Any:
    """An Accelerator whose `prepare()` shards with FSDP."""
    from accelerate import Accelerator

    plugin = _plugin(config)
    # Where Accelerate makes the process group itself, it then adds gloo for tensors in the memory of the CPU.
    os.environ["FSDP_OFFLOAD_PARAMS"] = str(config.strategy.cpu_offload).lower()
    if device.type != "cpu":
        return Accelerator(fsdp_plugin=plugin, **settings)
    if config.strategy.cpu_offload:
        # Pinning memory for transfers asks for a GPU.
        from torch.distributed.fsdp import CPUOffloadPolicy

        plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)
    made = Accelerator(cpu=True, **settings)
    _use_on_cpu(plugin)
    return made


def _use_on_cpu(plugin: Any) -> None:
    """Give a CPU Accelerator its FSDP plugin.

    `Accelerator(cpu=True, fsdp_plugin=...)` drops the plugin and trains with DDP. All its parts ask the two shared
    states of Accelerate which strategy they are under, so that is where it is said; `prove_active` then looks at the
    prepared model. Written for accelerate 1.15.
    """
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    for state in (PartialState._shared_state, AcceleratorState._shared_state):
        state["distributed_type"] = DistributedType.FSDP
        state["fsdp_plugin"] = plugin


def _plugin(config: Config) -> Any:
    from accelerate import FullyShardedDataParallelPlugin

    strategy = config.strategy
    full = strategy.state_dict == "full"
    settings: dict[str, Any] = {
        "fsdp_version": strategy.version,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "FULL_STATE_DICT" if full else "SHARDED_STATE_DICT",
        "cpu_offload": strategy.cpu_offload,
        # `recompute` does it: Accelerate 1.15 draws other dropout masks when it computes activations again.
        "activation_checkpointing": False,
        # It works for pretrained weights only; here each rank loads the model and then keeps its shard.
        "cpu_ram_efficient_loading": False,
    }
    if strategy.version == 2:
        settings["reshard_after_forward"] = strategy.reshard_after_forward
    else:
        settings["reshard_after_forward"] = "FULL_SHARD" if strategy.reshard_after_forward else "SHARD_GRAD_OP"
        settings["use_orig_params"] = True
    if config.training.mixed_precision != "no":
        settings["mixed_precision_policy"] = _precision(config.training.mixed_precision, strategy.version)
    return FullyShardedDataParallelPlugin(**settings)


def _precision(name: str, version: int) -> Any:
    """Compute in 16 bits and add gradients up in 32: sums over many ranks in 16 bits lose what is small."""
    from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

    compute = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    if version == 2:
        return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    return MixedPrecision(param_dtype=compute, reduce_dtype=torch.float32, buffer_dtype=torch.float32)


def wrapped(config: Config, model: torch.nn.Module) -> list[str]:
    """The classes of modules that are sharded one by one.

    Raises:
        UserError: `strategy.wrap` names a class of which the model has none, or one that is sharded in parts.
    """
    wanted = config.strategy.wrap
    names = layers(model) if wanted == "auto" else list(wanted)
    present = {type(module).__name__ for module in model.modules()}
    unknown = [name for name in names if name not in present]
    if unknown:
        raise UserError(f"strategy.wrap: the model has no module of class {unknown[0]!r}; its layers: {layers(model)}")
    if config.strategy.version == 2 and (around := [name for name in names if name in _around_embeddings(model)]):
        raise UserError(
            f"strategy.wrap: {around[0]} holds the input embeddings, which are sharded by themselves; leave it out"
        )
    return names


def _around_embeddings(model: torch.nn.Module) -> set[str]:
    """Classes of the modules around the input embeddings: Accelerate shards these by themselves, and none twice."""
    inner = getattr(model, "get_input_embeddings", lambda: None)()
    paths = [path for path, module in model.named_modules() if module is inner and inner is not None]
    around = {".".join(path.split(".")[:depth]) for path in paths for depth in range(path.count(".") + 1)}
    return {type(module).__name__ for path, module in model.named_modules() if path in around}


def choose_layers(config: Config, accelerator: Any, model: torch.nn.Module) -> None:
    """Tell the plugin which classes of modules are sharded one by one, and recompute their activations if asked for.

    Raises:
        UserError: `strategy.wrap` names a class of which the model has none.
    """
    names = wrapped(config, model)
    accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = names
    if config.strategy.activation_checkpointing:
        recompute(model, set(names))
    LOGGER.info("fsdp version %d shards %s one by one", config.strategy.version, ", ".join(names) or "the whole model")


def recompute(model: torch.nn.Module, names: set[str]) -> None:
    """Wrap layers so that their activations are computed again in the backward pass, with the same random numbers."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for path, module in list(model.named_modules()):
        if type(module).__name__ in names:
            model.set_submodule(path, checkpoint_wrapper(module, preserve_rng_state=True))


def layers(model: torch.nn.Module) -> list[str]:
    """Class names of the transformer layers: what the model's lists of equal modules hold, the largest of them."""
    sizes: Counter[str] = Counter()
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) > 1:
            kinds = {type(item).__name__ for item in module}
            if len(kinds) == 1:
                sizes[kinds.pop()] += sum(parameter.numel() for parameter in module.parameters())
    if sizes:
        return [sizes.most_common(1)[0][0]]
    # A model of one layer holds it in a list of one.
    named = getattr(model, "_no_split_modules", None) or []
    present = {type(module).__name__ for module in model.modules()}
    return [name for name in named if name in present - _around_embeddings(model)]
