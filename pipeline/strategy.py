"""Configuration -> Accelerator, and the proof that what was asked for is what is active."""

from typing import Any

import torch

from pipeline.config import Config
from pipeline.errors import RunError


def accelerator(config: Config, device: torch.device) -> Any:
    """An Accelerator on the processes and the device that Ray has set up.

    Its own gradient accumulation stays at 1: the loop weighs the loss over the whole global batch itself, as
    dividing by a fixed number is wrong for the short last accumulation.
    """
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    return Accelerator(
        # Without it, processes without a GPU each see a world of one and train a model of their own.
        cpu=device.type == "cpu",
        mixed_precision=config.training.mixed_precision,
        # A prepared scheduler would otherwise step once for each process.
        step_scheduler_with_optimizer=False,
        # The sampler fills up the last batch itself.
        dataloader_config=DataLoaderConfiguration(even_batches=False),
    )


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


def prove_active(accelerator: Any, model: torch.nn.Module) -> None:
    """After `prepare()`: more than one process means a model that averages its gradients.

    Raises:
        RunError: the model is a plain one, so that each process would train its own.
    """
    wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    if accelerator.num_processes > 1 and not wrapped:
        raise RunError(f"strategy.kind: ddp was asked for, but the prepared model is a {type(model).__name__}")
