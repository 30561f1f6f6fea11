"""DeepSpeed: its plugin, its operators, and what it needs on CPUs."""

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from pipeline.config import Config
from pipeline.errors import RunError, UserError
from pipeline.strategy import zero_config

LOGGER = logging.getLogger("pipeline")


def is_engine(model: Any) -> bool:
    """Whether a prepared model is DeepSpeed's."""
    deepspeed = sys.modules.get("deepspeed")
    return deepspeed is not None and isinstance(model, deepspeed.DeepSpeedEngine)


def accelerator(config: Config, device: torch.device, settings: dict[str, Any]) -> Any:
    """An Accelerator whose `prepare()` makes a DeepSpeed engine.

    Raises:
        RunError: DeepSpeed is not installed, or its configuration and ours disagree.
    """
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, is_deepspeed_available

    cpu = device.type == "cpu"
    if cpu:
        # Read when DeepSpeed is first imported; it would else look for a GPU.
        os.environ["DS_ACCELERATOR"] = "cpu"
        settings = settings | {"kwargs_handlers": [InitProcessGroupKwargs(backend="gloo")]}
    if not is_deepspeed_available():
        raise RunError("strategy.kind: deepspeed is not installed on the workers; install this package as [deepspeed]")
    _quiet(cpu)
    from accelerate import DeepSpeedPlugin

    try:
        resolved, _ = zero_config.resolve(config, gpu=not cpu)
    except UserError as error:
        raise RunError(*error.problems) from error
    wanted = "bf16" if resolved["bf16"]["enabled"] else "fp16" if resolved["fp16"]["enabled"] else "no"
    plugin = DeepSpeedPlugin(hf_ds_config=resolved, zero3_init_flag=False)
    return Accelerator(deepspeed_plugin=plugin, mixed_precision=wanted, **settings)


def _quiet(cpu: bool) -> None:
    # DeepSpeed 0.19.8 calls collectives by the names that torch 2.13 has given up: a warning for each step.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    import deepspeed.ops

    if cpu:
        # Sums through shared memory instead of gloo would have to be compiled first: g++, ninja, Python's headers, and
        # minutes, for a speed that nobody needs on CPUs.
        deepspeed.ops.__compatible_ops__ = {}


def build_operators(accelerator: Any) -> None:
    """Compile DeepSpeed's AdamW for offloaded moments, once on each node, where its configuration forces it.

    Nothing else here needs a compiler.

    Raises:
        RunError: it cannot be compiled.
    """
    values = accelerator.deepspeed_plugin.deepspeed_config
    offloads = values["zero_optimization"].get("offload_optimizer", {}).get("device") == "cpu"
    if not offloads or not values["zero_force_ds_cpu_optimizer"]:
        return
    from filelock import FileLock

    from pipeline.model import cache_folder

    folder = Path(os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(cache_folder() / "torch_extensions")))
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "build.lock"):
        # PyTorch's own lock is a file that a killed build leaves behind, and every later one waits for it for ever.
        for left in folder.rglob("lock"):
            left.unlink()
        try:
            from deepspeed.ops.op_builder import CPUAdamBuilder

            CPUAdamBuilder().load(verbose=False)
        except (RuntimeError, ImportError, OSError) as error:
            line = str(error).strip().splitlines()[-1:]
            raise RunError(
                f"strategy.config: zero_force_ds_cpu_optimizer is true, but DeepSpeed's AdamW does not compile "
                f"({' '.join(line)}); it needs g++, ninja and Python's headers; false takes PyTorch's"
            ) from error


def step(engine: Any) -> torch.Tensor:
    """Clip the gradients, take the optimizer's step, and give the norm that the gradients had."""
    norm = None
    if engine.zero_optimization_stage() == 0:
        # DeepSpeed does not keep it here. The gradients are whole, and averaged since the backward pass.
        gradients = [parameter.grad for parameter in engine.module.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
    engine.step()
    return torch.as_tensor(engine.get_global_grad_norm() if norm is None else norm, dtype=torch.float32)
