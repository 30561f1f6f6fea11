"""What both data engines give a worker, and the plans that both follow."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.config import Config
from pipeline.data.batch import Batch
from pipeline.data.plan import Plan, Shape


@dataclass(frozen=True)
class Index:
    """What is known of each tokenised row of a split, in file order: `lengths` and `weights`, both of shape (rows,)."""

    lengths: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    truncated: int


class Batches(Protocol):
    """One rank's view of the data."""

    plan: Plan
    validation_plan: Plan | None
    truncated: int

    def train(self, step: int) -> Iterator[Batch]:
        """This rank's micro-batches from global step `step` (0-based) on, over the following epochs too."""

    def validation(self) -> Iterator[Batch]:
        """This rank's validation batches, filled up to one size; all ranks have the same number of them."""


def train_shape(config: Config, workers: int) -> Shape:
    """Rows of an optimizer step and their spread over `workers`."""
    training = config.training
    return Shape.of(
        workers,
        training.batch_size_per_worker,
        training.gradient_accumulation_steps,
        training.global_batch_size,
    )


def train_plan(config: Config, index: Index, workers: int) -> Plan:
    """The shuffled plan of the training rows."""
    data = config.data
    shape = train_shape(config, workers)
    return Plan(index.lengths, index.weights, shape, config.run.seed, data.shuffle_rows, data.bucket_batches)


def validation_plan(config: Config, index: Index | None, workers: int) -> Plan | None:
    """The plan of the validation rows: all of them, in order of length."""
    if index is None:
        return None
    wanted = config.training.eval_batch_size_per_worker or 2 * config.training.batch_size_per_worker
    # No more rows a batch than there are: the rest would be fill on every rank.
    per_worker = min(wanted, -(-len(index.lengths) // workers))
    return Plan(index.lengths, index.weights, Shape.of(workers, per_worker), seed=None)


def total_steps(config: Config, plan: Plan) -> int:
    """Optimizer steps after which the run is complete."""
    steps = config.training.epochs * plan.steps_per_epoch
    return steps if config.training.max_steps is None else min(steps, config.training.max_steps)
