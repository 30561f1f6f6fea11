"""One worker's part of one attempt at a run: resume, wire the parts, train, and say what came of it."""

import logging
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import assembly, checkpoint, loop, shards
from pipeline.config import Config
from pipeline.data.engine import Batches, Index, total_steps
from pipeline.data.facts import Facts
from pipeline.reporter import ActorBoard, Place, Reporter
from pipeline.run import RunFolder
from pipeline.tracking import Recorder
from pipeline.watchdog import Watchdog

LOGGER = logging.getLogger("pipeline")


@dataclass(frozen=True)
class Attempt:
    """What belongs together for as long as a group of workers lives.

    `resumes_from` names the checkpoint to go on from, None for a start. `indices` are those of Ray Data's tokenised
    splits, None for the torch engine. `scratch` is a folder of this process.
    """

    config: Config
    facts: Facts
    place: Place
    accelerator: Any
    folder: RunFolder
    number: int
    resumes_from: str | None
    indices: dict[str, Index] | None
    recorder: Recorder
    scratch: Path
    board: ActorBoard
    watchdog: Watchdog

    def train(self) -> dict[str, Any]:
        """By the loop, or by the user's own function; rank 0 returns what `result.json` is made of."""
        if self.config.run.train_func is not None:
            return self._by_function(self.config.run.train_func)
        training = assembly.training(self.config, self.facts, self.accelerator)
        state = self._resumed(training)
        batches = self._batches(training.tokenizer)
        run = self._reporter()
        self._tell_schedule(batches)
        parts = assembly.parts(self.config, self.facts, self.accelerator, training, batches, state, run)
        run.prepared(parts, training)
        clock, resumed = loop.Clock(), state.step
        with self.watchdog:
            state = loop.fit(parts, state, clock)
        return self._outcome(run, training, parts, state, resumed, clock)

    def _by_function(self, address: str) -> dict[str, Any]:
        from pipeline import custom, train_func
        from pipeline.model import load_tokenizer

        function = train_func.resolve(address)
        tokenizer = load_tokenizer(self.config.model, self.config.storage)
        batches, run = self._batches(tokenizer), self._reporter()

        def setup(model: Any, optimizer: Any) -> tuple[checkpoint.Training, loop.State]:
            training = assembly.prepared(self.config, self.accelerator, model, optimizer, tokenizer)
            return training, self._resumed(training)

        context = custom.Context(
            self.config, self.facts, self.accelerator, tokenizer, batches, run, setup, run.prepared
        )  # fmt: skip
        LOGGER.info("training by %s", address)
        with self.watchdog:
            function(context)
            state = context.finish()
        return self._outcome(run, context.training, context.parts, state, context.resumed_step, context.clock)

    def _batches(self, tokenizer: Any) -> Batches:
        return assembly.batches(self.config, self.facts, self.accelerator, tokenizer, self.indices)

    def _reporter(self) -> Reporter:
        return Reporter(
            self.config, self.place, self.folder, self.number, self.recorder, self.scratch, self.board
        )  # fmt: skip

    def _resumed(self, training: checkpoint.Training) -> loop.State:
        if self.resumes_from is None:
            return loop.State()
        state = resumed(self.folder, self.resumes_from, training, self.place, self.scratch)
        LOGGER.info("resumed from %s at step %d", self.resumes_from, state.step)
        if self.place.rank == 0:
            self.board.post(event=f"attempt {self.number} resumes from {self.resumes_from} at step {state.step}")
        return state

    def _tell_schedule(self, batches: Batches) -> None:
        if self.resumes_from is None or self.place.rank:
            return
        before = checkpoint.manifest(self.folder.store, self.resumes_from).get("total_steps")
        steps = total_steps(self.config, batches.plan)
        if before != steps:
            LOGGER.info("the schedule is rebuilt: %s steps were planned, %s are now", before, steps)

    def _outcome(
        self,
        run: Reporter,
        training: checkpoint.Training,
        parts: loop.Parts,
        state: loop.State,
        resumed: int,
        clock: loop.Clock,
    ) -> dict[str, Any]:
        """All ranks call it, whatever rank 0 does with it."""
        from accelerate.utils import gather_object

        run.settle()
        workers = gather_object([self.place.describe()])
        print_ = assembly.agreed_fingerprint(training)
        if self.place.rank == 0:
            self.recorder.flush()
        return {
            "state": state.to_json(),
            "attempt": self.number,
            "resumed_from_step": resumed,
            "steps": parts.steps,
            "steps_per_epoch": parts.batches.plan.steps_per_epoch,
            "truncated_rows": parts.batches.truncated,
            "data_wait_share": clock.waiting / clock.stepping if clock.stepping else 0.0,
            "train_seconds": clock.stepping,
            "final_learning_rate": parts.scheduler.get_last_lr()[0],
            "parameters_sha256": print_,
            "workers": workers,
        }


def resumed(folder: RunFolder, name: str, training: checkpoint.Training, place: Place, scratch: Path) -> loop.State:
    """The state of a checkpoint, put into model and optimizer; every rank calls it.

    Each node fetches the checkpoint once, and its workers read the same folder. Of large files only those of this
    node's ranks are fetched, unless the number of workers has changed.
    """
    from accelerate.utils import gather_object

    mine, host = scratch / name, socket.gethostname()
    places = gather_object([(host, place.rank)])
    if place.local_rank == 0:
        here = {rank for other, rank in places if other == host}
        same = checkpoint.manifest(folder.store, name)["world_size"] == place.world_size
        checkpoint.download(folder.store, name, mine, lambda file: shards.belongs_to(file, here if same else None))
    folders = dict(gather_object([(host, str(mine))] if place.local_rank == 0 else []))
    state = loop.State(**checkpoint.load(Path(folders[host]), training))
    training.accelerator.wait_for_everyone()
    if place.local_rank == 0:
        shutil.rmtree(mine)
    return state
