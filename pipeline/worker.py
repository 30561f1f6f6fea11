"""What runs on every worker: rebuild the typed configuration, wire the parts, resume, call the loop."""

import logging
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
import torch

from pipeline import assembly, checkpoint, loop, shards, strategy
from pipeline.config import Config
from pipeline.data.engine import total_steps
from pipeline.data.inspect import Facts
from pipeline.errors import PipelineError, RunError
from pipeline.reporter import ActorBoard, Place, Reporter
from pipeline.run import RunFolder
from pipeline.tracking import Flusher, LogFile, Recorder

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
    torch.set_num_threads(job.threads)
    accelerator = strategy.accelerator(job.config, place.device)
    strategy.prove(accelerator, place.rank, place.local_rank, place.world_size, place.device)
    folder = RunFolder.of(job.config, job.owner)
    attempt, name, problems = _agree(accelerator, lambda: _claim(folder, place))
    if problems:
        return {"problems": problems}
    scratch = Path(tempfile.mkdtemp(prefix="pipeline-"))
    log = LogFile(folder.store, f"attempt-{attempt:03d}-rank-{place.rank:03d}", scratch / "logs")
    log.open()
    try:
        LOGGER.info("attempt %d: %s; Ray and Accelerate agree", attempt, place.describe())
        recorder = Recorder(folder.store, attempt)
        flushes: list[Callable[[], None]] = [log.flush] if place.rank else [recorder.flush, log.flush]
        with Flusher(*flushes):
            return _train(job, place, accelerator, folder, attempt, name, recorder, scratch)
    except RunError as error:
        LOGGER.error("%s", error)
        return {"problems": error.problems}
    except BaseException:
        LOGGER.exception("attempt %d ends", attempt)
        raise
    finally:
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


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
) -> dict[str, Any]:
    config = job.config
    board = ActorBoard(job.board)
    if config.run.train_func is not None:
        return _own(job, place, accelerator, folder, attempt, name, recorder, scratch)
    training = assembly.training(config, job.facts, accelerator)
    state = loop.State()
    if name is not None:
        state = _resume(folder, name, training, place, scratch)
        LOGGER.info("resumed from %s at step %d", name, state.step)
        if place.rank == 0:
            board.post(event=f"attempt {attempt} resumes from {name} at step {state.step}")
    indices = None if job.indices is None else ray.get(job.indices)
    batches = assembly.batches(config, job.facts, accelerator, training.tokenizer, indices)
    run = Reporter(config, place, folder, attempt, recorder, scratch, board)
    steps = total_steps(config, batches.plan)
    if name is not None and (before := _planned(folder, name)) != steps:
        LOGGER.info("the schedule is rebuilt: %s steps were planned, %s are now", before, steps)
    parts = assembly.parts(config, job.facts, accelerator, training, batches, state, run)
    run.prepared(parts, training)
    clock, resumed = loop.Clock(), state.step
    state = loop.fit(parts, state, clock)
    return _outcome(place, attempt, recorder, run, parts, training, state, resumed, clock)


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

    def setup(model: Any, optimizer: Any) -> tuple[checkpoint.Training, loop.State]:
        training, state = assembly.prepared(config, accelerator, model, optimizer, tokenizer), loop.State()
        if name is not None:
            state = _resume(folder, name, training, place, scratch)
            LOGGER.info("resumed from %s at step %d", name, state.step)
            if place.rank == 0:
                board.post(event=f"attempt {attempt} resumes from {name} at step {state.step}")
        return training, state

    context = custom.Context(config, job.facts, accelerator, tokenizer, batches, run, setup, run.prepared)
    LOGGER.info("training by %s", config.run.train_func)
    function(context)
    state = context.finish()
    return _outcome(
        place, attempt, recorder, run, context.parts, context.training, state, context.resumed_step, context.clock
    )


def _outcome(
    place: Place,
    attempt: int,
    recorder: Recorder,
    run: Reporter,
    parts: loop.Parts,
    training: checkpoint.Training,
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
    print_ = assembly.agreed_fingerprint(training)
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
    planned: int | None = checkpoint.manifest(folder.store, name).get("total_steps")
    return planned


def _resume(folder: RunFolder, name: str, training: checkpoint.Training, place: Place, scratch: Path) -> loop.State:
    """Each node fetches the checkpoint once; its workers read the same folder.

    Of large files only those of this node's ranks are fetched, unless the number of workers has changed.
    """
    from accelerate.utils import gather_object

    accelerator = training.accelerator
    mine, host = scratch / name, socket.gethostname()
    places = gather_object([(host, place.rank)])
    if place.local_rank == 0:
        here = {rank for other, rank in places if other == host}
        same = checkpoint.manifest(folder.store, name)["world_size"] == place.world_size
        checkpoint.download(folder.store, name, mine, lambda file: shards.belongs_to(file, here if same else None))
    folders = dict(gather_object([(host, str(mine))] if place.local_rank == 0 else []))
    values = checkpoint.load(Path(folders[host]), training)
    accelerator.wait_for_everyone()
    if place.local_rank == 0:
        shutil.rmtree(mine)
    return loop.State(**values)
