"""A PyTorch DataLoader over a memory-mapped Hugging Face `datasets` table; the loaders go through `prepare()`.

Each node tokenises once, into its cache folder: the first of its workers writes, the others wait and map the same file.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from filelock import FileLock
from torch.utils.data import DataLoader, Sampler

from pipeline.config import Config
from pipeline.data.batch import Batch, Collate, numbered
from pipeline.data.engine import Index, total_steps, train_plan, validation_plan
from pipeline.data.files import read
from pipeline.data.inspect import Facts
from pipeline.data.plan import FILL, Plan
from pipeline.data.tokens import Tokeniser
from pipeline.model import cache_folder

KEPT_S = 30 * 24 * 3600.0


def tokenised(config: Config, facts: Facts, split: str) -> Any:
    """The tokenised split as a `datasets.Dataset`, in file order, written on the first call on a node."""
    from datasets import Dataset, Features
    from datasets.arrow_writer import ArrowWriter

    tokeniser = Tokeniser.of(config, facts, split)
    target = _cache_file(tokeniser, facts, split)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            partial = target.with_suffix(f".{os.getpid()}")
            writer = None
            for file in facts.files[split]:
                for tokens in tokeniser.file(read(file, tokeniser.columns, config.data, config.storage)):
                    writer = writer or ArrowWriter(features=Features.from_arrow_schema(tokens.schema), path=str(partial))
                    writer.write_table(tokens)
            assert writer is not None, "an empty split is refused before any worker starts"
            writer.finalize()
            partial.rename(target)
            _forget_old(target.parent)
    os.utime(target)
    return Dataset.from_file(str(target))


def _forget_old(folder: Path) -> None:
    """Delete what no job has read for a month; who has it mapped keeps it."""
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > KEPT_S:
                file.unlink()


def _cache_file(tokeniser: Tokeniser, facts: Facts, split: str) -> Path:
    import tokenizers
    import transformers

    config = tokeniser.config
    key = {
        "files": [[file.path, file.size, file.tag] for file in facts.files[split]],
        "data": config.data.model_dump(mode="json", exclude={"train", "validation", "engine"}),
        "model": config.model.model_dump(mode="json"),
        "labels": tokeniser.labels,
        "class_weights": tokeniser.class_weights,
        "packs": tokeniser.packs,
        "versions": [transformers.__version__, tokenizers.__version__, pa.__version__],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    folder = cache_folder() / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{digest}.arrow"


class SlotSampler(Sampler[list[int]]):
    """The slots of all ranks, in the order in which Accelerate deals batches to processes: rank by rank.

    `BatchSamplerShard` gives batch `i` to process `i % processes`; every batch here has `micro_rows` rows and every
    micro-batch one slot for each rank, so that what each process gets is exactly its part of the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.batch_size = plan.shape.micro_rows
        self.drop_last = False
        self.steps = range(0)

    def __len__(self) -> int:
        return sum(len(self.plan.slots(step)) for step in self.steps)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps:
            for slot in self.plan.slots(step):
                yield [*slot.tolist(), *[FILL] * (self.batch_size - len(slot))]


class Rows:
    """The table as DataLoader sees it: a list of row numbers in, a table of rows out, FILL standing for the shortest."""

    def __init__(self, table: Any, plan: Plan) -> None:
        self.table = table.with_format("arrow")
        self.plan = plan

    def __len__(self) -> int:
        # A multiple of the batch over all processes. Accelerate cuts what `gather_for_metrics` gives by the remainder of
        # this length, although the sampler has filled up the last batch already; fill is taken out by row number.
        size = self.plan.shape.micro_rows * self.plan.shape.workers
        return -(-self.plan.rows // size) * size

    def __getitems__(self, rows: list[int]) -> pa.Table:
        wanted = np.asarray(rows, np.int64)
        return numbered(self.table[np.where(wanted == FILL, self.plan.filler, wanted).tolist()], wanted)


class TorchBatches:
    """Batches of one rank, through loaders that `Accelerator.prepare` has taken over."""

    def __init__(
        self,
        config: Config,
        facts: Facts,
        collate: Collate,
        validation_collate: Collate,
        accelerator: Any,
    ) -> None:
        workers = accelerator.num_processes
        train = tokenised(config, facts, "train")
        index = index_of(train)
        self.plan = train_plan(config, index, workers)
        self.truncated = index.truncated
        self.steps = total_steps(config, self.plan)
        self.sampler = SlotSampler(self.plan)
        loader = DataLoader(cast(Any, Rows(train, self.plan)), batch_sampler=self.sampler, collate_fn=collate)
        self.loader = accelerator.prepare(loader)
        self.validation_plan = None
        if facts.files.get("validation"):
            validation = tokenised(config, facts, "validation")
            self.validation_plan = validation_plan(config, index_of(validation), workers)
            assert self.validation_plan is not None
            sampler = SlotSampler(self.validation_plan)
            sampler.steps = range(self.validation_plan.steps_per_epoch)
            rows = Rows(validation, self.validation_plan)
            loader = DataLoader(cast(Any, rows), batch_sampler=sampler, collate_fn=validation_collate)
            self.validation_loader = accelerator.prepare(loader)

    def train(self, step: int) -> Iterator[Batch]:
        """This rank's micro-batches from global step `step` on."""
        while step < self.steps:
            end = min(self.steps, (step // self.plan.steps_per_epoch + 1) * self.plan.steps_per_epoch)
            self.sampler.steps = range(step, end)
            yield from self.loader
            step = end

    def validation(self) -> Iterator[Batch]:
        """This rank's validation batches."""
        yield from self.validation_loader


def index_of(table: Any) -> Index:
    """Lengths, weights and the number of truncated rows of a tokenised split."""
    columns = table.data
    lengths, weights, truncated = (
        np.asarray(columns.column(name)) for name in ("length", "weight", "truncated")
    )
    return Index(lengths, weights, int(truncated.sum()))
