"""What each rank holds of the training state, as runs of flattened tensors, the same for every strategy.

All strategies cut a parameter into contiguous runs of its flattened form: FSDP2 by rows, ZeRO-3 into equal parts,
ZeRO-1 and 2 wherever the border of a partition falls; DDP does not cut. A piece is such a run together with its place,
so that what one number of workers has saved another can load by reading the runs that it needs. Pieces are views:
writing into them changes the state.
"""

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from pipeline.errors import RunError
from pipeline.lora import is_adapted
from pipeline.strategy import zero

if TYPE_CHECKING:
    from pipeline.shards import Reader

# What wrappers put into the names of parameters.
WRAPPERS = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "_orig_mod.")
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Piece:
    """`values`, one-dimensional, are the elements from `offset` on of the flattened tensor `name` of that shape.

    `common`: every rank holds the same ones.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    values: torch.Tensor
    common: bool = False


class Holding(Protocol):
    """One rank's part of model and optimizer.

    With `sharded` no rank holds all; else every rank holds the same.
    """

    sharded: bool

    def weights(self) -> Iterator[Piece]:
        """Runs of parameters and persistent buffers, in full precision where the strategy keeps it."""

    def moments(self) -> Iterator[Piece]:
        """Runs of the optimizer's moments, named `parameter::moment`; those of parameters that have been trained."""

    def steps(self) -> dict[str, float]:
        """Optimizer steps of each trained parameter that this rank holds a part of."""

    def fill(self, reader: "Reader") -> None:
        """Take over what a checkpoint holds; all ranks call it. Raises RunError if it is another model's."""

    def whole(self, keep: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Weights and moments uncut, gathered one at a time, with `keep`; all ranks call it, the others get nothing."""


def innermost(optimizer: Any) -> Any:
    """The optimizer that takes the steps; Accelerate and DeepSpeed wrap it, and share its groups' learning rates."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def holding(model: Any, optimizer: Any) -> Holding:
    """The holding of a prepared model and optimizer."""
    if zero.is_engine(model):
        from pipeline.strategy.partitions import partitions

        return partitions(model)
    inner = innermost(optimizer)
    if type(model).__name__ == "FullyShardedDataParallel":
        from pipeline.strategy.fsdp1 import Flattened

        return Flattened(model, inner)
    return Tensors(bare(model), inner)


def bare(model: Any) -> Any:
    """The model itself, out of what DDP or DeepSpeed has put around it.

    Accelerate's `unwrap_model` imports DeepSpeed in every job where it is installed, to see whether it is used.
    """
    wrapped = isinstance(model, torch.nn.parallel.DistributedDataParallel) or zero.is_engine(model)
    return model.module if wrapped else model


def plain(name: str) -> str:
    """The name of a parameter without what wrappers add."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def buffers(module: torch.nn.Module) -> Iterator[Piece]:
    """Buffers that belong to the state of a module; every rank holds them whole. Under adapters they are the base's."""
    if is_adapted(module):
        return
    for path, inner in module.named_modules():
        for name, buffer in inner._buffers.items():
            if buffer is not None and name not in inner._non_persistent_buffers_set:
                yield whole_piece(plain(f"{path}.{name}" if path else name), buffer)


def whole_piece(name: str, tensor: torch.Tensor) -> Piece:
    return Piece(name, tuple(tensor.shape), 0, tensor.detach().view(-1), common=True)


def _local(name: str, tensor: torch.Tensor) -> Piece:
    """Of a tensor that FSDP2 has cut by rows, this rank's; of another, all."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(tensor, DTensor):
        return whole_piece(name, tensor)
    (placement,) = tensor.placements
    assert isinstance(placement, Shard) and placement.dim == 0, f"{name} is cut by {placement}"
    shape = tuple(tensor.shape)
    _, start = compute_local_shape_and_global_offset(shape, tensor.device_mesh, tensor.placements)
    local = tensor.to_local().detach()
    offset = start[0] * math.prod(shape[1:]) if local.numel() else 0
    return Piece(name, shape, offset, local.view(-1))


def tied(module: torch.nn.Module) -> set[str]:
    """Names of weights that are others under a second name, and may be absent from files."""
    return set(getattr(module, "_tied_weights_keys", None) or ())


def read_into(pieces: Iterable[Piece], reader: "Reader", optional: Container[str] = ()) -> None:
    """Fill pieces from a checkpoint.

    Raises:
        RunError: it lacks a tensor that is not `optional`, or has it in another shape.
    """
    for piece in pieces:
        if piece.name in optional and piece.name not in reader.shapes:
            continue
        if (shape := reader.shapes.get(piece.name)) != piece.shape:
            raise RunError(
                f"checkpoint {reader.folder.name}: {piece.name} has the shape {shape}, the model's {piece.shape}"
            )
        reader.read(piece.name, piece.offset, piece.values)


class Tensors:
    """DDP, one process and FSDP2, where the optimizer works on the model's own parameters."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.fsdp import FSDPModule

        self.sharded = isinstance(module, FSDPModule)
        for inner in module.modules() if self.sharded else ():
            # After an evaluation some are still gathered: plain tensors, which the optimizer does not know.
            if isinstance(inner, FSDPModule):
                inner.reshard()
        self.module, self.optimizer = module, optimizer
        self.parameters = {
            plain(name): parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad or not is_adapted(module)
        }

    def weights(self) -> Iterator[Piece]:
        """Of the model's parameters."""
        for name, parameter in self.parameters.items():
            yield _local(name, parameter)
        yield from buffers(self.module)

    def moments(self) -> Iterator[Piece]:
        """Of each trained parameter."""
        for name, parameter in self.parameters.items():
            for key, value in self._state(parameter).items():
                if key in MOMENTS:
                    yield _local(f"{name}::{key}", value)

    def _state(self, parameter: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state.get(parameter, {})
        return state

    def steps(self) -> dict[str, float]:
        """The same on all ranks."""
        states = {name: self._state(parameter) for name, parameter in self.parameters.items()}
        return {name: float(state["step"]) for name, state in states.items() if state}

    def begin(self, steps: dict[str, float]) -> None:
        """As AdamW does in its first step."""
        for name, step in steps.items():
            parameter = self.parameters[name]
            state = {key: torch.zeros_like(parameter, memory_format=torch.preserve_format) for key in MOMENTS}
            self.optimizer.state[parameter] = {"step": torch.tensor(step, dtype=torch.float32), **state}

    def fill(self, reader: "Reader") -> None:
        """The pieces are the model."""
        read_into(self.weights(), reader, tied(self.module))
        self.fill_moments(reader)

    def fill_moments(self, reader: "Reader") -> None:
        """What the optimizer keeps, alone."""
        self.begin(reader.steps)
        read_into(self.moments(), reader)

    def whole(self, keep: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """In the memory of the CPU."""
        weights = dict(self.parameters) | {piece.name: piece.values.view(piece.shape) for piece in buffers(self.module)}
        return _gathered(weights, keep), self.whole_moments(keep)

    def whole_moments(self, keep: bool) -> dict[str, torch.Tensor]:
        """What the optimizer keeps, alone."""
        moments = {
            f"{name}::{key}": value
            for name, parameter in self.parameters.items()
            for key, value in self._state(parameter).items()
            if key in MOMENTS
        }
        return _gathered(moments, keep)


def _gathered(tensors: dict[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if keep:
            found[name] = full.detach().cpu()
    return found
