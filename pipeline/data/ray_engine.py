"""Ray Data: tokenised once into the object store, then streamed to the workers in the order of the plan.

Each worker's rows come in blocks that hold whole steps of that worker, one block for each worker in turn. Ray deals
blocks of equal size strictly in turn (`streaming_split(equal=True)` with `preserve_order`), so that the order is that of
the plan and no row is lost to an equal split. One stream covers all epochs that are left: it needs no pause between two
epochs, and a resumed run starts it at its own step.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
import ray.data
import ray.train
from ray.data.collate_fn import ArrowBatchCollateFn

from pipeline.config import Config
from pipeline.data.batch import Batch, Collate, numbered
from pipeline.data.engine import Index, total_steps, train_plan, validation_plan
from pipeline.data.files import DataFile, read
from pipeline.data.inspect import Facts
from pipeline.data.plan import FILL, Plan
from pipeline.data.tokens import Tokeniser
from pipeline.errors import RunError

# Rows of one block for one worker: large enough that the cost of a task is small, small enough to start at once.
BLOCK_ROWS = 1024


def quiet() -> None:
    """Settings of Ray Data that the order depends on, and no bars of its own beside ours."""
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def execution_options() -> Any:
    """For DataConfig: blocks reach the workers in the order in which they were asked for."""
    options = ray.data.ExecutionOptions()
    options.preserve_order = True
    return options


@dataclass(frozen=True)
class Tokens:
    """A tokenised split in the object store. `starts`: first row of each block, with the row count at the end."""

    blocks: list[Any] = field(repr=False)
    starts: npt.NDArray[np.int64] = field(repr=False)
    index: Index = field(repr=False)
    owner: Any = field(default=None, repr=False)

    def gather(self, rows: npt.NDArray[np.int64], filler: int) -> pa.Table:
        """These rows in this order, from the blocks that hold them."""
        real = np.where(rows == FILL, filler, rows)
        block = np.searchsorted(self.starts, real, side="right") - 1
        needed = np.unique(block)
        tables = ray.get([self.blocks[number] for number in needed])
        parts, places = [], []
        for number, table in zip(needed, tables, strict=True):
            at = np.flatnonzero(block == number)
            parts.append(table.take(real[at] - self.starts[number]))
            places.append(at)
        order = np.argsort(np.concatenate(places), kind="stable")
        return numbered(pa.concat_tables(parts).take(order), rows)

    def without_owner(self) -> "Tokens":
        """A copy for other processes; the driver's own keeps the blocks alive."""
        return Tokens(self.blocks, self.starts, self.index)


@ray.remote(num_cpus=0.5)
def _facts_of(block: pa.Table) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], int]:
    truncated = int(np.asarray(block["truncated"]).sum())
    return block["length"].to_numpy(), block["weight"].to_numpy(), truncated


def tokenise(config: Config, facts: Facts, split: str) -> Tokens:
    """Read and tokenise a split on the cluster's CPUs, once."""
    quiet()
    tokeniser = Tokeniser.of(config, facts, split)
    # A file without rows would give a block without columns.
    counts = facts.rows_per_file[split]
    files = [file for file, rows in zip(facts.files[split], counts, strict=True) if rows]

    def rows_of(batch: dict[str, Any]) -> Iterator[pa.Table]:
        for number in batch["file"]:
            file: DataFile = files[int(number)]
            yield from tokeniser.file(read(file, tokeniser.columns, config.data, config.storage))

    numbers = ray.data.from_items([{"file": number} for number in range(len(files))], override_num_blocks=len(files))
    dataset = numbers.map_batches(rows_of, batch_size=1).materialize()
    blocks = dataset.to_arrow_refs()
    parts = ray.get([_facts_of.remote(block) for block in blocks])
    sizes = [len(lengths) for lengths, _, _ in parts]
    index = Index(
        np.concatenate([lengths for lengths, _, _ in parts]),
        np.concatenate([weights for _, weights, _ in parts]),
        sum(truncated for _, _, truncated in parts),
    )
    return Tokens(blocks, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), index, owner=dataset)


def rounds(plan: Plan, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges of steps, each the content of one block a worker; none reaches over the end of an epoch."""
    steps = max(1, BLOCK_ROWS // (plan.shape.micro_rows * plan.shape.accumulation))
    found = []
    while first < last:
        epoch_end = (first // plan.steps_per_epoch + 1) * plan.steps_per_epoch
        end = min(first + steps, last, epoch_end)
        found.append((first, end))
        first = end
    return found


# Kept for the life of a process of Ray Data: a plan remembers the order of its epoch, which costs a sort.
_shared: dict[str, tuple[Tokens, Plan]] = {}


def _block(batch: dict[str, Any], shared: Any, parts: list[tuple[int, int]], workers: int) -> pa.Table:
    number, rank = divmod(int(batch["id"][0]), workers)
    if shared.hex() not in _shared:
        _shared.clear()
        _shared[shared.hex()] = ray.get(shared)
    tokens, plan = _shared[shared.hex()]
    steps = range(*parts[number])
    rows = [plan.rank_rows(step, rank) for step in steps]
    table = tokens.gather(np.concatenate(rows), plan.filler)
    step_column = np.repeat(np.fromiter(steps, np.int64), [len(part) for part in rows])
    return table.append_column("step", pa.array(step_column))


def stream(tokens: Tokens, plan: Plan, first: int, last: int) -> ray.data.Dataset:
    """Steps `first` to `last` of the plan as blocks, worker by worker; the column `step` says which step a row is of."""
    quiet()
    shared = ray.put((tokens.without_owner(), plan))
    parts, workers = rounds(plan, first, last), plan.shape.workers

    def block(batch: dict[str, Any]) -> pa.Table:
        # The work is in a function of the module: a nested one is pickled with a copy of the module's globals.
        return _block(batch, shared, parts, workers)

    count = len(parts) * workers
    return ray.data.range(count, override_num_blocks=count).map_batches(block, batch_size=None)


def datasets(
    config: Config, tokens: dict[str, Tokens], next_step: Callable[[], int]
) -> dict[str, Callable[[], ray.data.Dataset]]:
    """What TorchTrainer takes; called at each start of a group of workers, when `next_step` says where to go on."""
    workers = config.scaling.workers

    def train() -> ray.data.Dataset:
        plan = train_plan(config, tokens["train"].index, workers)
        last = total_steps(config, plan)
        return stream(tokens["train"], plan, min(next_step(), last - 1), last)

    made: dict[str, Callable[[], ray.data.Dataset]] = {"train": train}
    if "validation" in tokens:
        plan = validation_plan(config, tokens["validation"].index, workers)
        assert plan is not None
        made["validation"] = lambda: stream(tokens["validation"], plan, 0, plan.steps_per_epoch)
    return made


class _RayCollate(ArrowBatchCollateFn):
    """The common collate function in the form that Ray Data recognises as taking Arrow tables."""

    def __init__(self, collate: Collate) -> None:
        super().__init__()
        self.collate = collate

    def __call__(self, batch: pa.Table) -> Batch:
        step = int(batch["step"][0].as_py())
        made = self.collate(batch.drop_columns(["step"]))
        return made | {"step": _scalar(step)}


def _scalar(value: int) -> Any:
    import torch

    return torch.tensor([value])


class RayBatches:
    """Batches of one rank, out of its shard of Ray Data's streams."""

    def __init__(
        self,
        config: Config,
        indices: dict[str, Index],
        collate: Collate,
        validation_collate: Collate,
        workers: int,
    ) -> None:
        self.plan = train_plan(config, indices["train"], workers)
        self.validation_plan = validation_plan(config, indices.get("validation"), workers)
        self.truncated = indices["train"].truncated
        self.collate, self.validation_collate = collate, validation_collate
        self.steps = total_steps(config, self.plan)

    def train(self, step: int) -> Iterator[Batch]:
        """This rank's micro-batches from global step `step` on.

        Raises:
            RunError: the stream does not start at that step.
        """
        first = True
        for batch in self._batches("train", self.plan, self.collate):
            found = int(batch.pop("step"))
            if first and found != step:
                raise RunError(f"the data stream starts at step {found}, the checkpoint at step {step}")
            first = False
            yield batch

    def validation(self) -> Iterator[Batch]:
        """This rank's validation batches."""
        assert self.validation_plan is not None
        for batch in self._batches("validation", self.validation_plan, self.validation_collate):
            batch.pop("step")
            yield batch

    def _batches(self, name: str, plan: Plan, collate: Collate) -> Iterator[Batch]:
        shard = ray.train.get_dataset_shard(name)
        yield from shard.iter_torch_batches(
            batch_size=plan.shape.micro_rows, collate_fn=_RayCollate(collate), prefetch_batches=2, drop_last=False
        )
