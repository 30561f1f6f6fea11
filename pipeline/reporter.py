"""What the loop tells the outside, through Ray: metrics lines, progress, reports with checkpoints."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from pipeline import checkpoint, loop
from pipeline.config import Config
from pipeline.result import is_metric, plain
from pipeline.retention import prune
from pipeline.run import RunFolder
from pipeline.tracking import Board, Recorder

LOGGER = logging.getLogger("pipeline")
# A node that is drained has about 30 s; asking is a round trip of all ranks to an actor.
PREEMPTION_EVERY_S = 2.0
BOARD_S = 5.0
# Checkpoints on a node's disk that are still on their way to storage; a slow store holds training up before the disk
# fills, and a run that is lost repeats no more than the steps since the one before.
UNDER_WAY = 1


@dataclass(frozen=True)
class Place:
    """Where this worker is."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @classmethod
    def found(cls) -> "Place":
        """As Ray Train says."""
        context = ray.train.get_context()
        device = ray.train.torch.get_device()
        return cls(context.get_world_rank(), context.get_local_rank(), context.get_world_size(), device)

    def describe(self) -> dict[str, Any]:
        """For `result.json`."""
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "world_size": self.world_size,
            "device": str(self.device),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }


class ActorBoard:
    """Posts to the driver's board, an actor, without waiting for it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def post(self, **values: Any) -> None:
        """Newest values."""
        if self._actor is not None:
            self._actor.post.remote(values)

    def begins(self, rank: int) -> None:
        """A rank starts, or goes on after all."""
        if self._actor is not None:
            self._actor.begins.remote(rank)

    def stands(self, rank: int, words: str) -> None:
        """What a rank has been doing for long."""
        if self._actor is not None:
            self._actor.stands.remote(rank, words)

    def failed(self, words: str) -> None:
        """Last words of a rank, for the driver."""
        self._ask("failed", words)

    def standing(self) -> dict[int, str]:
        """What the ranks have been doing for long."""
        return self._ask("standing") or {}

    def _ask(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            return None
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=BOARD_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            LOGGER.warning("the driver's board does not answer: %s", error)
            return None


class Reporter:
    """The loop's outside: metrics lines, progress, `ray.train.report` with checkpoints."""

    _parts: loop.Parts
    _training: checkpoint.Training

    def __init__(
        self,
        config: Config,
        place: Place,
        folder: RunFolder,
        attempt: int,
        recorder: Recorder,
        scratch: Path,
        board: Board,
    ) -> None:
        self._config, self._place, self._folder, self._attempt = config, place, folder, attempt
        self._recorder, self._scratch, self._board = recorder, scratch, board
        self._uploads: list[threading.Event] = []
        self._asked = 0.0
        self._preempted: set[str] = set()

    def prepared(self, parts: loop.Parts, training: checkpoint.Training) -> None:
        """What checkpoints are made of."""
        self._parts, self._training = parts, training

    def settle(self) -> None:
        """Wait for the uploads that are under way; what they are made of is deleted when training ends."""
        for upload in self._uploads:
            upload.wait(self._config.checkpoint.upload_timeout_s)

    def log(self, line: dict[str, Any]) -> None:
        """A line of metrics, kept by rank 0."""
        if self._place.rank:
            return
        self._recorder.add(line)
        if "learning_rate" in line:
            self._board.post(total=self._parts.steps, note="", **line)
        else:
            shown = ", ".join(f"{key} {value:.4f}" for key, value in line.items() if is_metric(key))
            LOGGER.info("step %d: %s", line["step"], shown)
            self._board.post(event=f"step {line['step']}: {shown}", note="")

    def evaluating(self, done: int, total: int) -> None:
        """Progress of an evaluation."""
        if self._place.rank == 0:
            self._board.post(note=f"evaluating {done}/{total}" if total > 1 else "evaluating")

    def check_due(self) -> bool:
        """Every few seconds, on rank 0."""
        if self._place.rank or time.monotonic() - self._asked < PREEMPTION_EVERY_S:
            return False
        self._asked = time.monotonic()
        return True

    def must_save(self) -> bool:
        """Whether a node has been told to go since the last save for that reason."""
        found = ray.train.get_preemption_info()
        nodes = set(found.preempted_node_ids) if found else set()
        if nodes <= self._preempted:
            return False
        self._preempted |= nodes
        LOGGER.warning("nodes of ranks %s are being taken away; saving", found.preempted_ranks)
        return True

    def report(self, state: loop.State, save: bool) -> None:
        """To Ray Train; with `save`, all ranks write their share of a checkpoint."""
        metrics = {"step": state.step, **(state.history[-1] if state.history else {})}
        if not save:
            ray.train.report(metrics)
            return
        for upload in self._uploads[:-UNDER_WAY]:
            upload.wait(self._config.checkpoint.upload_timeout_s)
        self._uploads = self._uploads[-UNDER_WAY:]
        name = checkpoint.Name(self._attempt, state.step)
        local = self._scratch / str(name)
        checkpoint.save(local, self._training, state.to_json())
        mode = ray.train.CheckpointUploadMode
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint.from_directory(str(local)),
            checkpoint_dir_name=str(name),
            checkpoint_upload_mode=mode.ASYNC if self._config.checkpoint.async_upload else mode.SYNC,
            delete_local_checkpoint_after_upload=True,
            checkpoint_upload_fn=self._uploader(name, state),
        )

    def _uploader(self, name: checkpoint.Name, state: loop.State) -> Callable[[Any, str], Any]:
        config, folder, place = self._config, self._folder, self._place
        facts = {
            "step": state.step,
            "total_steps": self._parts.steps,
            "attempt": name.attempt,
            "metrics": plain(state.history[-1]) if state.history else {},
        }
        storage = ray.train.get_context().get_storage()
        path = storage.build_checkpoint_path_from_name(str(name))

        done = threading.Event()
        self._uploads.append(done)

        def upload(local: Any, _: str) -> Any:
            try:
                folder.check_owner()  # an attempt that was frozen shall not fill the store with what nobody reads
                if place.rank == 0:
                    self._recorder.flush()
                checkpoint.upload(
                    folder.store, Path(local.path), name, place.rank, place.world_size, facts,
                    config.checkpoint.upload_timeout_s, folder.check_owner,
                )  # fmt: skip
                if place.rank == 0:
                    LOGGER.info("saved %s", name)
                    prune(folder.store, name.attempt, config.checkpoint.keep, state.best_step)
            finally:
                done.set()
            return ray.train.Checkpoint(path=path, filesystem=storage.storage_filesystem)

        return upload
