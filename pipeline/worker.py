"""What runs on every worker: rebuild the typed configuration, wire the parts, resume, call the loop."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray.train
import torch
import transformers

from pipeline import checkpoint, strategy
from pipeline.attempt import Attempt
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.errors import PipelineError, RunError
from pipeline.reporter import ActorBoard, Place
from pipeline.run import RunFolder
from pipeline.tracking import Flusher, LogFile, Recorder
from pipeline.watchdog import Watchdog

LOGGER = logging.getLogger("pipeline")


@dataclass(frozen=True)
class Job:
    """What the driver hands to each worker. `indices` is a reference to Ray Data's, None for the torch engine."""

    config: Config
    facts: Facts
    owner: str
    threads: int
    indices: Any
    board: Any

    def to_dict(self) -> dict[str, Any]:
        """As the `train_loop_config` that Ray Train takes."""
        return {
            "config": self.config.model_dump(mode="json"),
            "facts": self.facts.to_json(),
            "owner": self.owner,
            "threads": self.threads,
            "indices": self.indices,
            "board": self.board,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Job":
        """Back from `train_loop_config`."""
        config, facts = Config.model_validate(values["config"]), Facts.from_json(values["facts"])
        return cls(config, facts, values["owner"], values["threads"], values["indices"], values["board"])


def train_loop_per_worker(values: dict[str, Any]) -> dict[str, Any]:
    """Train; rank 0 returns what `result.json` is made of, or `problems` that no retry would solve."""
    job, place = Job.from_dict(values), Place.found()
    # Their tables and bars fill the job's log; what of it matters, model.py says itself.
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(job.threads)
    accelerator = strategy.accelerator(job.config, place.device)
    strategy.prove(accelerator, place.rank, place.local_rank, place.world_size, place.device)
    folder = RunFolder.of(job.config, job.owner)
    attempt, name, problems = _agree(accelerator, lambda: _claim(folder, place))
    if problems:
        return {"problems": problems}
    scratch = _scratch()
    log = LogFile(folder.store, f"attempt-{attempt:03d}-rank-{place.rank:03d}", scratch / "logs")
    log.open()
    try:
        LOGGER.info("attempt %d: %s; Ray and Accelerate agree", attempt, place.describe())
        recorder = Recorder(folder.store, attempt)
        flushes: list[Callable[[], None]] = [log.flush] if place.rank else [recorder.flush, log.flush]
        board = ActorBoard(job.board)
        watchdog = Watchdog(place.rank, job.config.run.stall_timeout_s, board, lambda: [flush() for flush in flushes])
        indices = None if job.indices is None else ray.get(job.indices)
        with Flusher(*flushes):
            return Attempt(
                job.config, job.facts, place, accelerator, folder, attempt, name, indices, recorder, scratch, board,
                watchdog,
            ).train()  # fmt: skip
    except RunError as error:
        LOGGER.error("%s", error)
        return {"problems": error.problems}
    except BaseException:
        LOGGER.exception("attempt %d ends", attempt)
        raise
    finally:
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch() -> Path:
    """A folder for checkpoints on their way; those that killed workers left behind go first."""
    for folder in Path(tempfile.gettempdir()).glob("pipeline-worker-*-*"):
        owner = folder.name.split("-")[2]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"pipeline-worker-{os.getpid()}-"))


def _claim(folder: RunFolder, place: Place) -> tuple[int, str | None, list[str]]:
    found = checkpoint.complete(folder.store)
    return folder.claim_attempt(place.world_size), str(found[-1]) if found else None, []


def _agree(
    accelerator: Any, decide: Callable[[], tuple[int, str | None, list[str]]]
) -> tuple[int, str | None, list[str]]:
    """Rank 0 decides and all follow; ranks that looked for themselves could see different states of the store."""
    from accelerate.utils import broadcast_object_list

    decision: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            decision[0] = decide()
        except PipelineError as error:
            decision[0] = (0, None, error.problems)
    broadcast_object_list(decision, from_process=0)
    attempt, name, problems = decision[0]
    return attempt, name, problems
