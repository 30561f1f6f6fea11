"""The plan of batches: which rows make up each optimizer step, and which worker takes which of them.

The order is a function of (seed, epoch, rows of a global batch) alone: both data engines follow it on any number of
workers, and a run resumed in the middle of an epoch goes on with the rows not used yet. Nothing here reads data; a plan
needs only the length and the loss weight of each row.

A global batch is cut into slots, `accumulation x workers` of them, of nearly equal size. Slot `s` is micro-batch
`s // workers` of rank `s % workers`. Slots that have fewer rows than a full micro-batch are filled up with row
`FILL`, whose weight is 0, so that all ranks take the same number of steps whatever the row count.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

FILL = -1
# A buffer of shuffled rows is drawn from this many places of a data set that is larger than the buffer.
CHUNKS_PER_BUFFER = 64

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """How many rows an optimizer step takes, and how they are spread: `global_rows <= workers * accumulation * micro_rows`."""

    global_rows: int
    workers: int
    micro_rows: int
    accumulation: int

    @classmethod
    def of(cls, workers: int, per_worker: int, accumulation: int = 1, global_rows: int | None = None) -> "Shape":
        """The shape for a wanted micro-batch, or for a global batch whose micro-batch is at most `per_worker`."""
        if global_rows is None:
            return cls(per_worker * accumulation * workers, workers, per_worker, accumulation)
        share = -(-global_rows // workers)
        accumulation = min(share, max(accumulation, -(-share // per_worker)))
        return cls(global_rows, workers, -(-share // accumulation), accumulation)


@dataclass(frozen=True)
class Step:
    """One optimizer step over all workers. `weight`: sum of the rows' loss weights, what the loss is divided by."""

    rows: Rows
    weight: float
    tokens: int
    padded_tokens: int
    micro_batches: int


class Plan:
    """All optimizer steps of a run.

    Args:
        lengths: tokens of each row, shape (rows,).
        weights: loss weight of each row, shape (rows,).
        shape: rows of a step and their spread.
        seed: of the order; None keeps one fixed order, by length (evaluation).
        shuffle_rows: size of the shuffle buffer; a data set that fits is shuffled as a whole.
        bucket_batches: global batches within which rows are sorted by length; their order is shuffled again.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float32],
        shape: Shape,
        seed: int | None,
        shuffle_rows: int = 262_144,
        bucket_batches: int = 50,
    ) -> None:
        assert len(lengths) == len(weights) > 0
        # No more rows a micro-batch than there are: the rest would be fill, and memory for it, on every rank.
        shape = replace(shape, micro_rows=min(shape.micro_rows, -(-len(lengths) // shape.workers)))
        self.lengths, self.weights, self.shape, self.seed = lengths, weights, shape, seed
        self.shuffle_rows, self.bucket_batches = shuffle_rows, bucket_batches
        self._cached: tuple[int, Rows] | None = None

    @property
    def rows(self) -> int:
        """Rows of the data set."""
        return len(self.lengths)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; the last may have fewer rows."""
        return -(-self.rows // self.shape.global_rows)

    @cached_property
    def filler(self) -> int:
        """The row whose content stands in for FILL: the shortest, as it costs least."""
        return int(np.argmin(self.lengths))

    def order(self, epoch: int) -> Rows:
        """Rows in the order in which epoch `epoch` uses them, shape (rows,)."""
        if self._cached is None or self._cached[0] != epoch:
            order = np.argsort(self.lengths, kind="stable") if self.seed is None else self._shuffled(epoch)
            self._cached = (epoch, order)
        return self._cached[1]

    def _shuffled(self, epoch: int) -> Rows:
        assert self.seed is not None
        rng = np.random.default_rng([self.seed, epoch])
        order = self._buffers(rng)
        if self.bucket_batches == 1:
            return order
        size = self.shape.global_rows
        full = self.rows - self.rows % size
        # The short last batch takes rows as they come: sorting it in would leave it the longest rows of each epoch.
        for start in range(0, full, self.bucket_batches * size):
            window = order[start : min(start + self.bucket_batches * size, full)]
            batches = window[np.argsort(self.lengths[window], kind="stable")].reshape(-1, size)
            order[start : start + len(window)] = rng.permutation(batches, axis=0).reshape(-1)
        return order

    def _buffers(self, rng: np.random.Generator) -> Rows:
        if self.rows <= self.shuffle_rows:
            return rng.permutation(self.rows)
        size = max(1, self.shuffle_rows // CHUNKS_PER_BUFFER)
        starts = rng.permutation(np.arange(0, self.rows, size))
        order = np.concatenate([np.arange(start, min(start + size, self.rows)) for start in starts])
        for start in range(0, self.rows, self.shuffle_rows):
            rng.shuffle(order[start : start + self.shuffle_rows])
        return order

    def step_rows(self, step: int) -> Rows:
        """Rows of global step `step` (0-based over all epochs), shortest first."""
        epoch, at = divmod(step, self.steps_per_epoch)
        size = self.shape.global_rows
        rows = self.order(epoch)[at * size : (at + 1) * size]
        return rows[np.argsort(self.lengths[rows], kind="stable")]

    def slots(self, step: int) -> list[Rows]:
        """Row numbers of each slot of a step, without fill; slot `s` is micro-batch `s // workers` of rank `s % workers`."""
        rows = self.step_rows(step)
        full = self.shape.workers * self.shape.micro_rows
        return np.array_split(rows, -(-len(rows) // full) * self.shape.workers)

    def step(self, step: int, multiple: int = 1) -> Step:
        """Sizes of a step; `multiple`: what the padded length of a micro-batch is rounded up to."""
        slots = self.slots(step)
        rows = np.concatenate(slots)
        padded = sum(len(slot) * -(-int(self.lengths[slot].max()) // multiple) * multiple for slot in slots if len(slot))
        return Step(
            rows=rows,
            weight=float(self.weights[rows].sum(dtype=np.float64)),
            tokens=int(self.lengths[rows].sum()),
            padded_tokens=padded,
            micro_batches=len(slots) // self.shape.workers,
        )

    def rank_rows(self, step: int, rank: int) -> Rows:
        """Rows of all micro-batches of `rank` in a step, each filled up to `micro_rows`, shape (micro_batches * micro_rows,)."""
        slots = self.slots(step)[rank :: self.shape.workers]
        filled = np.full((len(slots), self.shape.micro_rows), FILL, np.int64)
        for line, slot in zip(filled, slots, strict=True):
            line[: len(slot)] = slot
        return filled.reshape(-1)
