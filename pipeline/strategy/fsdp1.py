"""What a rank holds under FSDP version 1, which only gathers whole state dictionaries here.

It flattens the parameters of a layer into one, so that a rank's shard starts and ends within parameters; its own
functions put them together. They need GPUs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from pipeline.shards import Reader
from pipeline.strategy.pieces import MOMENTS, Piece, buffers, plain


class Flattened:
    """FSDP1, with the model's own parameters kept as views (`use_orig_params`)."""

    sharded = True

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def weights(self) -> Iterator[Piece]:
        """This rank's shards, for fingerprints; they are not where a checkpoint's are."""
        for name, parameter in self.model.named_parameters():
            yield Piece(plain(name), (parameter.numel(),), 0, parameter.detach().view(-1))
        yield from buffers(self.model)

    def moments(self) -> Iterator[Piece]:
        """This rank's, as with `weights`."""
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if key in MOMENTS:
                    yield Piece(f"{plain(name)}::{key}", (value.numel(),), 0, value.view(-1))

    def steps(self) -> dict[str, float]:
        """All parameters are trained in every step."""
        found = [float(state["step"]) for state in self.optimizer.state.values() if "step" in state]
        return {plain(name): found[0] for name, _ in self.model.named_parameters()} if found else {}

    def whole(self, keep: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Gathered by FSDP, in the memory of rank 0's CPU."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        with self._full(rank0_only=True):
            weights = self.model.state_dict()
            states = FullyShardedDataParallel.optim_state_dict(self.model, self.optimizer).get("state", {})
        if not keep:
            return {}, {}
        moments = {
            f"{plain(name)}::{key}": value
            for name, state in states.items()
            for key, value in state.items()
            if key in MOMENTS
        }
        return {plain(name): value for name, value in weights.items()}, moments

    def fill(self, reader: Reader) -> None:
        """Every rank reads all and keeps its shards."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        with self._full(rank0_only=False):
            self.model.load_state_dict({name: reader.whole(name) for name in reader.weights}, strict=False)
            state = {
                name: {"step": torch.tensor(step)} | {key: reader.whole(f"{name}::{key}") for key in MOMENTS}
                for name, step in reader.steps.items()
            }
            if state:
                groups = FullyShardedDataParallel.optim_state_dict(self.model, self.optimizer)["param_groups"]
                found = {"state": state, "param_groups": groups}
                self.optimizer.load_state_dict(
                    FullyShardedDataParallel.optim_state_dict_to_load(self.model, self.optimizer, found)
                )

    def _full(self, rank0_only: bool) -> AbstractContextManager[Any]:
        from torch.distributed.fsdp import (
            FullOptimStateDictConfig,
            FullStateDictConfig,
            FullyShardedDataParallel,
            StateDictType,
        )

        return FullyShardedDataParallel.state_dict_type(  # type: ignore[no-any-return]
            self.model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=True, rank0_only=rank0_only),
            FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=rank0_only),
        )
