"""What a rank holds under DeepSpeed: runs of its flat float32 partitions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.lora import is_adapted
from pipeline.shards import Reader
from pipeline.strategy.pieces import (
    MOMENTS,
    Holding,
    Piece,
    Tensors,
    buffers,
    plain,
    read_into,
    tied,
    whole_piece,
)


@dataclass(frozen=True)
class _Run:
    """A parameter's run in DeepSpeed's flat float32 partition: `flat[start:start + count]` from `offset` on."""

    name: str
    shape: tuple[int, ...]
    offset: int
    flat: torch.Tensor
    start: int
    count: int


class Partitions:
    """ZeRO: the optimizer works on flat float32 partitions, of which the model's parameters are copies.

    Written for DeepSpeed 0.19.8, whose public functions gather each parameter on every rank.
    """

    sharded = True

    def __init__(self, engine: Any) -> None:
        self.engine, self.zero = engine, engine.optimizer
        self.optimizer = self.zero.optimizer

    def _runs(self) -> Iterator[_Run]:
        raise NotImplementedError

    def _frozen(self) -> Iterator[Piece]:
        raise NotImplementedError

    def weights(self) -> Iterator[Piece]:
        """The float32 ones; frozen parameters have none, and are given as they are."""
        for run in self._runs():
            yield Piece(run.name, run.shape, run.offset, run.flat.detach().narrow(0, run.start, run.count))
        if not is_adapted(self.engine.module):
            yield from self._frozen()
        yield from buffers(self.engine.module)

    def moments(self) -> Iterator[Piece]:
        """Of this rank's partitions."""
        for run in self._runs():
            for key, value in self.optimizer.state.get(run.flat, {}).items():
                if key in MOMENTS:
                    yield Piece(f"{run.name}::{key}", run.shape, run.offset, value.narrow(0, run.start, run.count))

    def steps(self) -> dict[str, float]:
        """A partition counts once for all that lies in it."""
        states = {run.name: self.optimizer.state.get(run.flat) for run in self._runs()}
        return {name: float(state["step"]) for name, state in states.items() if state}

    def begin(self, steps: dict[str, float]) -> None:
        """As the optimizer does in its first step."""
        for run in self._runs():
            if run.name in steps and not self.optimizer.state.get(run.flat):
                step = steps[run.name]
                # DeepSpeed's AdamW for CPUs counts in a plain integer.
                count = torch.tensor(step) if isinstance(self.optimizer, torch.optim.AdamW) else int(step)
                zeros = {key: torch.zeros_like(run.flat.detach()) for key in MOMENTS}
                self.optimizer.state[run.flat] = {"step": count, **zeros}

    def whole(self, keep: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Never asked for: each rank writes its part."""
        raise NotImplementedError

    def fill(self, reader: Reader) -> None:
        """The float32 partitions, then the model's parameters."""
        self.begin(reader.steps)
        read_into((*self.weights(), *self.moments()), reader, tied(self.engine.module))
        self.loaded()

    def loaded(self) -> None:
        """Copy the float32 partitions into the model's parameters, as each optimizer step does."""
        raise NotImplementedError


class Partitions12(Partitions):
    """ZeRO-1 and 2, and DeepSpeed's bf16 without ZeRO: every rank has all parameters and a part of the float32 ones."""

    def _runs(self) -> Iterator[_Run]:
        flats = getattr(self.zero, "single_partition_of_fp32_groups", None)
        if flats is None:
            flats = self.zero.fp32_groups_flat_partition
        for name, parameter in self.engine.module.named_parameters():
            found = getattr(parameter, "_hp_mapping", None)
            if found is not None:
                model, flat = found.lp_fragment_address, found.hp_fragment_address
                group = flats[found.param_group_index]
                yield _Run(plain(name), tuple(parameter.shape), model.start, group, flat.start, flat.numel)

    def _frozen(self) -> Iterator[Piece]:
        for name, parameter in self.engine.module.named_parameters():
            if not hasattr(parameter, "_hp_mapping"):
                yield whole_piece(plain(name), parameter)

    def loaded(self) -> None:
        """And gather them."""
        self.zero.update_lp_params()


class Partitions3(Partitions):
    """ZeRO-3: parameters, too, lie in parts on the ranks."""

    def _runs(self) -> Iterator[_Run]:
        for name, parameter in self.engine.module.named_parameters():
            if parameter.requires_grad:
                group, start, count = self.zero.grad_position[self.zero.get_param_id(parameter)]
                offset = self._offset(parameter, count)
                real = max(0, min(count, parameter.ds_numel - offset))  # the last part is filled up
                if real:
                    flat = self.zero.fp32_partitioned_groups_flat[group]
                    yield _Run(plain(name), tuple(parameter.ds_shape), offset, flat, start, real)

    def _offset(self, parameter: Any, count: int) -> int:
        rank: int = self.zero._get_param_partition_rank(parameter)
        return rank * count

    def _frozen(self) -> Iterator[Piece]:
        for name, parameter in self.engine.module.named_parameters():
            if not parameter.requires_grad:
                part = parameter.ds_tensor.detach().view(-1)
                offset = self._offset(parameter, part.numel())
                real = max(0, min(part.numel(), parameter.ds_numel - offset))
                if real:
                    yield Piece(plain(name), tuple(parameter.ds_shape), offset, part.narrow(0, 0, real))

    def loaded(self) -> None:
        """And gather anew those small ones that every rank keeps whole."""
        z = self.zero
        for low, high in zip(z.fp16_partitioned_groups_flat, z.fp32_partitioned_groups_flat, strict=True):
            low.data.copy_(high.data)
        if z.persistent_parameters:
            z.persistent_parameters[0].partition(z.persistent_parameters)
            z.persistent_parameters[0].all_gather(z.persistent_parameters)


def partitions(engine: Any) -> Holding:
    """The holding of a DeepSpeed engine."""
    if engine.zero_optimization_stage() == 3:
        return Partitions3(engine)
    if isinstance(engine.optimizer, torch.optim.Optimizer) and not hasattr(engine.optimizer, "optimizer"):
        return Tensors(engine.module, engine.optimizer)  # stage 0 in float32
    return Partitions12(engine)
