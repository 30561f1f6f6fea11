"""The worker as it is, on bare processes: what it asks of Ray Train is answered here."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import ray.train
import torch
import torch.distributed

from pipeline import assembly, checkpoint, worker
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.reporter import Place
from pipeline.run import RunFolder


def train(config: dict[str, Any], facts: dict[str, Any], owner: str) -> dict[str, Any]:
    """`train_loop_per_worker` of a driver with the mark `owner`; what it returns.

    `run.collective_timeout_s` holds from the first checkpoint on: on a busy machine one process starts much later than
    another.
    """
    job = worker.Job(Config.model_validate(config), Facts.from_json(facts), owner, 1, None, None)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def report(_: dict[str, Any], checkpoint: Any = None, checkpoint_upload_fn: Any = None, **more: Any) -> None:
        """What Ray Train does with a report, without the thread."""
        if checkpoint is not None:
            checkpoint_upload_fn(checkpoint, more["checkpoint_dir_name"])
            if size > 1:
                limit = timedelta(seconds=job.config.run.collective_timeout_s)
                torch.distributed.distributed_c10d._set_pg_timeout(limit)

    filesystem, root = RunFolder.of(job.config, owner).store.filesystem()
    storage = SimpleNamespace(
        build_checkpoint_path_from_name=lambda name: f"{root}/{name}", storage_filesystem=filesystem
    )
    before = {name: getattr(ray.train, name) for name in ("report", "get_context", "get_preemption_info")}
    found = Place.found
    ray.train.report = report
    ray.train.get_context = lambda: SimpleNamespace(get_storage=lambda: storage)
    ray.train.get_preemption_info = lambda: None
    Place.found = lambda: Place(rank, rank, size, torch.device("cpu"))  # type: ignore[method-assign]
    try:
        return worker.train_loop_per_worker(job.to_dict())
    finally:
        for name, value in before.items():
            setattr(ray.train, name, value)
        Place.found = found  # type: ignore[method-assign]


def train_and_be_killed(
    config: dict[str, Any], facts: dict[str, Any], owner: str, step: int, saved: int
) -> dict[str, Any]:
    """`train`, but rank 1 kills itself at the second micro-batch of a step, once the checkpoint `saved` is complete."""
    store = RunFolder.of(Config.model_validate(config), owner).store
    made: Any = assembly.batches

    def batches(*arguments: Any) -> Any:
        found = made(*arguments)
        original, planned = found.train, found.plan

        def until_then(first: int) -> Iterator[Any]:
            before = sum(planned.step(number).micro_batches for number in range(first, step))
            for number, batch in enumerate(original(first)):
                if number == before + 1:
                    while saved not in [name.step for name in checkpoint.complete(store)]:
                        time.sleep(0.05)
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

        found.train = until_then
        return found

    if os.environ["RANK"] == "1":
        assembly.batches = batches  # type: ignore[assignment]
    return train(config, facts, owner)
