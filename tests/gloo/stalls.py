"""Workers that are held up in the middle of training; what their watchdogs and the process group make of it."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from pipeline import assembly, loop, strategy
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.watchdog import Watchdog
from tests.gloo.cases import Collected

HELD_UP_S = 1000.0


class Folder:
    """The board that ranks share, as files."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def begins(self, rank: int) -> None:
        (self.path / f"stands-{rank}").unlink(missing_ok=True)

    def stands(self, rank: int, words: str) -> None:
        (self.path / f"stands-{rank}").write_text(words)

    def failed(self, words: str) -> None:
        (self.path / f"failed-{words.split()[1]}").write_text(words)

    def standing(self) -> dict[int, str]:
        return {int(path.name.split("-")[1]): path.read_text() for path in self.path.glob("stands-*")}


def train(config: dict[str, Any], facts: dict[str, Any], board: str) -> int:
    """Train as a worker does, but rank 1 is held up by its data loader at the third batch; the steps done."""
    job, found = Config.model_validate(config), Facts.from_json(facts)
    # As Ray Train does with TorchConfig(timeout_s=...); Accelerate takes the group that is there.
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    training = assembly.training(job, found, accelerator)
    batches = assembly.batches(job, found, accelerator, training.tokenizer, None)
    parts = assembly.parts(job, found, accelerator, training, batches, loop.State(), Collected(None))
    rank = accelerator.process_index
    if rank == 1:
        original = batches.train

        def slow(step: int) -> Iterator[Any]:
            for number, batch in enumerate(original(step)):
                if number == 2:
                    time.sleep(HELD_UP_S)
                yield batch

        batches.train = slow  # type: ignore[method-assign]
    accelerator.wait_for_everyone()
    # Only now as short as the test wants it: on a busy machine one process loads its model much later than another.
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=job.run.collective_timeout_s))
    with Watchdog(rank, job.run.stall_timeout_s, Folder(board), lambda: None):
        state = loop.fit(parts, loop.State(), loop.Clock())
    return state.step
