"""Tensors of a checkpoint as files: each rank's runs of flattened tensors, or whole tensors, both read in any cut.

    weights/rank-NNNNN.safetensors   runs of parameters and buffers, each one-dimensional
    moments/rank-NNNNN.safetensors   runs of the optimizer's moments, `parameter::moment`
    shards/rank-NNNNN.json           of each run its tensor's shape and its place in it; steps of each parameter

Where no rank shards, rank 0 writes whole tensors instead: `model*.safetensors`, as `from_pretrained` loads them, and
`optimizer.safetensors`.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipeline.errors import RunError
from pipeline.strategy.pieces import Piece

WHOLE_MOMENTS = "optimizer.safetensors"
STEP = "::step"


def write_runs(
    folder: Path, rank: int, weights: Iterable[Piece], moments: Iterable[Piece], steps: dict[str, float]
) -> None:
    """Write what this rank holds."""
    index: dict[str, Any] = {"steps": steps}
    for kind, pieces in (("weights", weights), ("moments", moments)):
        found = [piece for piece in pieces if piece.values.numel()]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        # Runs are views of flat buffers; safetensors writes only tensors with a memory of their own.
        tensors = {piece.name: piece.values.cpu().clone() for piece in found}
        save_file(tensors, folder / kind / f"rank-{rank:05d}.safetensors")
        index[kind] = {
            piece.name: {"shape": piece.shape, "offset": piece.offset, "count": piece.values.numel()} for piece in found
        }
    (folder / "shards").mkdir(exist_ok=True)
    (folder / "shards" / f"rank-{rank:05d}.json").write_text(json.dumps(index), encoding="utf-8")


def write_whole_moments(folder: Path, moments: dict[str, torch.Tensor], steps: dict[str, float]) -> None:
    """Write moments of their parameters' shapes, and the steps beside them."""
    counts = {f"{name}{STEP}": torch.tensor(step, dtype=torch.float32) for name, step in steps.items()}
    save_file({name: value.cpu().contiguous() for name, value in moments.items()} | counts, folder / WHOLE_MOMENTS)


def belongs_to(relative: str, ranks: set[int] | None) -> bool:
    """Whether those ranks want a file of a checkpoint: the large ones are each rank's own; None is all ranks."""
    folder, _, name = relative.rpartition("/")
    if ranks is None or folder not in ("weights", "moments"):
        return True
    return int(name.removeprefix("rank-").removesuffix(".safetensors")) in ranks


@dataclass(frozen=True)
class _Run:
    file: Path
    offset: int
    count: int


class Reader:
    """The tensors of a checkpoint's folder, by name, in any cut; files are opened when they are first read.

    `steps` holds the optimizer steps of each trained parameter, `shapes` the shape of every tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.steps: dict[str, float] = {}
        self.weights: list[str] = []
        self._runs: dict[str, list[_Run]] = {}
        self._open: dict[Path, Any] = {}
        self._stack = ExitStack()
        if any((folder / "shards").glob("*.json")):
            for file in sorted((folder / "shards").glob("*.json")):
                self._take_runs(file)
        else:
            self._take_whole()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _take_runs(self, file: Path) -> None:
        index = json.loads(file.read_text(encoding="utf-8"))
        self.steps |= index["steps"]
        for kind in ("weights", "moments"):
            for name, found in index[kind].items():
                self._add(name, tuple(found["shape"]), kind == "weights")
                path = self.folder / kind / f"{file.stem}.safetensors"
                self._runs[name].append(_Run(path, found["offset"], found["count"]))

    def _take_whole(self) -> None:
        for file in sorted(self.folder.glob("*.safetensors")):
            opened = self._file(file)
            for name in opened.keys():  # noqa: SIM118  (no mapping)
                if name.endswith(STEP):
                    self.steps[name.removesuffix(STEP)] = float(opened.get_tensor(name))
                else:
                    shape = tuple(opened.get_slice(name).get_shape())
                    self._add(name, shape, file.name != WHOLE_MOMENTS)
                    self._runs[name].append(_Run(file, 0, math.prod(shape)))

    def _add(self, name: str, shape: tuple[int, ...], weight: bool) -> None:
        if name not in self.shapes:
            self.shapes[name] = shape
            self._runs[name] = []
            if weight:
                self.weights.append(name)

    def _file(self, file: Path) -> Any:
        if file not in self._open:
            self._open[file] = self._stack.enter_context(safe_open(file, "pt"))
        return self._open[file]

    def read(self, name: str, offset: int, into: torch.Tensor) -> None:
        """Fill `into`, one-dimensional, with the elements from `offset` on of the flattened tensor.

        Raises:
            RunError: the checkpoint has no such tensor, or lacks some of these elements.
        """
        end, filled = offset + into.numel(), 0
        for run in self._runs.get(name, []):
            low, high = max(offset, run.offset), min(end, run.offset + run.count)
            if low < high:
                into[low - offset : high - offset].copy_(self._part(name, run, low - run.offset, high - run.offset))
                filled += high - low
        if filled != into.numel():
            raise RunError(
                f"checkpoint {self.folder.name}: has {filled} of the elements {offset} to {end} of {name}; it is "
                "another model's, or incomplete"
            )

    def _part(self, name: str, run: _Run, low: int, high: int) -> torch.Tensor:
        opened = self._file(run.file)
        found = opened.get_slice(name)
        shape = found.get_shape()
        if len(shape) == 1:
            return found[low:high]
        if (low, high) == (0, run.count) or not shape:
            return opened.get_tensor(name).reshape(-1)[low:high]
        # Of a whole tensor only the rows that hold the elements.
        row = math.prod(shape[1:])
        first, last = low // row, -(-high // row)
        return found[first:last].reshape(-1)[low - first * row : high - first * row]

    def whole(self, name: str) -> torch.Tensor:
        """A tensor in its shape."""
        kinds = [self._file(run.file).get_slice(name).get_dtype() for run in self._runs[name][:1]]
        dtype = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64,
                 "F64": torch.float64, "I32": torch.int32, "BOOL": torch.bool, "U8": torch.uint8}[kinds[0]]  # fmt: skip
        values = torch.empty(math.prod(self.shapes[name]), dtype=dtype)
        self.read(name, 0, values)
        return values.view(self.shapes[name])

    def wholes(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights, one at a time."""
        for name in self.weights:
            yield name, self.whole(name)
