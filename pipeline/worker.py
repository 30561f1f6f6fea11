"""What runs on every worker: rebuild the typed configuration, wire the parts, resume, call the loop."""

import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray.train
import torch
import transformers

from pipeline import assembly, checkpoint, loop, strategy
from pipeline.config import Config
from pipeline.data.engine import total_steps
from pipeline.data.inspect import Facts
from pipeline.errors import PipelineError, RunError
from pipeline.reporter import ActorBoard, Place, Reporter
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
        with Flusher(*flushes):
            return _train(job, place, accelerator, folder, attempt, name, recorder, scratch, board, watchdog)
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


def _train(
    job: Job,
    place: Place,
    accelerator: Any,
    folder: RunFolder,
    attempt: int,
    name: str | None,
    recorder: Recorder,
    scratch: Path,
    board: ActorBoard,
    watchdog: Watchdog,
) -> dict[str, Any]:
    config = job.config
    if config.run.train_func is not None:
        return _own(job, place, accelerator, folder, attempt, name, recorder, scratch)
    trainee = assembly.trainee(config, job.facts, accelerator)
    state = loop.State()
    if name is not None:
        state = _resume(folder, name, trainee, place, accelerator, scratch)
        LOGGER.info("resumed from %s at step %d", name, state.step)
        if place.rank == 0:
            board.post(event=f"attempt {attempt} resumes from {name} at step {state.step}")
    indices = None if job.indices is None else ray.get(job.indices)
    batches = assembly.batches(config, job.facts, accelerator, trainee.tokenizer, indices)
    run = Reporter(config, place, folder, attempt, recorder, scratch, board)
    steps = total_steps(config, batches.plan)
    if name is not None and (before := _planned(folder, name)) != steps:
        LOGGER.info("the schedule is rebuilt: %s steps were planned, %s are now", before, steps)
    parts = assembly.parts(config, job.facts, accelerator, trainee, batches, state, run)
    run.prepared(parts, trainee.tokenizer)
    clock, resumed = loop.Clock(), state.step
    with watchdog:
        state = loop.fit(parts, state, clock)
    return _outcome(place, attempt, recorder, run, parts, state, resumed, clock)


def _own(
    job: Job,
    place: Place,
    accelerator: Any,
    folder: RunFolder,
    attempt: int,
    name: str | None,
    recorder: Recorder,
    scratch: Path,
) -> dict[str, Any]:
    """As `_train`, with the user's own function in place of the loop."""
    from pipeline import custom
    from pipeline.model import load_tokenizer

    config, board = job.config, ActorBoard(job.board)
    assert config.run.train_func is not None
    function = custom.resolve(config.run.train_func)
    tokenizer = load_tokenizer(config.model, config.storage)
    indices = None if job.indices is None else ray.get(job.indices)
    batches = assembly.batches(config, job.facts, accelerator, tokenizer, indices)
    run = Reporter(config, place, folder, attempt, recorder, scratch, board)

    def setup(model: Any, optimizer: Any, scheduler: Any) -> tuple[Any, Any, Any, loop.State]:
        state = loop.State()
        if name is not None:
            state = _resume(folder, name, assembly.Trainee(model, optimizer, tokenizer), place, accelerator, scratch)
            LOGGER.info("resumed from %s at step %d", name, state.step)
            if place.rank == 0:
                board.post(event=f"attempt {attempt} resumes from {name} at step {state.step}")
        prepared = accelerator.prepare(model, optimizer, scheduler)
        assembly.prove(config, accelerator, prepared[0])
        return (*prepared, state)

    context = custom.Context(
        config, job.facts, accelerator, tokenizer, batches, run, setup, lambda parts: run.prepared(parts, tokenizer)
    )
    LOGGER.info("training by %s", config.run.train_func)
    function(context)
    state = context.finish()
    return _outcome(place, attempt, recorder, run, context.parts, state, context.resumed_step, context.clock)


def _outcome(
    place: Place,
    attempt: int,
    recorder: Recorder,
    run: Reporter,
    parts: loop.Parts,
    state: loop.State,
    resumed: int,
    clock: loop.Clock,
) -> dict[str, Any]:
    """What rank 0 returns to the driver; all ranks call it."""
    from accelerate.utils import gather_object

    batches = parts.batches
    run.settle()
    # All ranks enter these, whatever rank 0 does with them.
    workers = gather_object([place.describe()])
    print_ = assembly.agreed_fingerprint(run.model)
    if place.rank == 0:
        recorder.flush()
    return {
        "state": state.to_json(),
        "attempt": attempt,
        "resumed_from_step": resumed,
        "steps": parts.steps,
        "steps_per_epoch": batches.plan.steps_per_epoch,
        "truncated_rows": batches.truncated,
        "data_wait_share": clock.waiting / clock.stepping if clock.stepping else 0.0,
        "train_seconds": clock.stepping,
        "final_learning_rate": parts.scheduler.get_last_lr()[0],
        "parameters_sha256": print_,
        "workers": workers,
    }


def _planned(folder: RunFolder, name: str) -> int | None:
    manifest = json.loads(folder.store.child(name).read(checkpoint.MANIFEST))
    planned: int | None = manifest.get("total_steps")
    return planned


def _resume(
    folder: RunFolder,
    name: str,
    trainee: assembly.Trainee,
    place: Place,
    accelerator: Any,
    scratch: Path,
) -> loop.State:
    """Each node fetches the checkpoint once; its workers read the same folder."""
    from accelerate.utils import gather_object

    mine = scratch / name
    if place.local_rank == 0:
        checkpoint.download(folder.store, name, mine)
    host = socket.gethostname()
    folders = dict(gather_object([(host, str(mine))] if place.local_rank == 0 else []))
    values = checkpoint.load(
        Path(folders[host]), trainee.model, trainee.optimizer, accelerator.scaler, place.rank, place.world_size
    )
    accelerator.wait_for_everyone()
    if place.local_rank == 0:
        shutil.rmtree(mine)
    return loop.State(**values)
