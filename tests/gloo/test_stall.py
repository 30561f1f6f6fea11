"""A rank that is held up does not hold up the others for ever: the run ends, and says which rank, where and when."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import checkpoint
from pipeline.run import RunFolder
from tests.gloo import stalls, workers
from tests.gloo.world import World

pytestmark = pytest.mark.timeout(600)
Job = Callable[..., Any]


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two processes of their own, since some of them do not survive, and leave behind what they had on disk."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    world = World(2)
    yield world
    world.close()


def train(two: World, job: Job, folder: Path, **run: float) -> list[tuple[str, Any]]:
    config, facts = job(rows=120, training={"epochs": 2, "batch_size_per_worker": 8}, run=run)
    two.begin(stalls.train, config=config.model_dump(mode="json"), facts=facts.to_json(), board=str(folder))
    return [two.outcome(rank) for rank in (0, 1)]


def test_a_data_loader_that_stalls_ends_its_worker_which_says_so(two: World, job: Job, tmp_path: Path) -> None:
    outcomes = train(two, job, tmp_path, stall_timeout_s=6, collective_timeout_s=300)
    assert outcomes[1] == ("ended", 70)
    words = (tmp_path / "failed-1").read_text()
    assert words.startswith("rank 1 has stood still for 6 s at step 3, waiting for a batch; ")
    # The other rank waits for the gradients of this one. It ends because of it, the one way or the other.
    assert outcomes[0][0] in ("raised", "ended")
    assert "rank 0 at step 3, forward and backward" in words or "rank 0" in str(outcomes[0][1])


def test_a_collective_that_does_not_return_ends_with_the_rank_the_step_and_who_is_missing(
    two: World, job: Job, tmp_path: Path
) -> None:
    outcomes = train(two, job, tmp_path, stall_timeout_s=60, collective_timeout_s=8)
    status, words = outcomes[0]
    assert status == "raised"
    last = words.strip().splitlines()[-1]
    assert last.startswith("pipeline.errors.WorkerFailed: rank 0 at step 3, forward and backward: ")
    assert "imed out" in last
    assert last.endswith("; rank 1 at step 3, waiting for a batch")


def test_a_frozen_process_ends_the_run_and_the_log_in_storage_says_where(two: World, job: Job, tmp_path: Path) -> None:
    config, facts = job(
        rows=120, training={"epochs": 1000, "batch_size_per_worker": 8}, checkpoint={"every": 5, "keep": 1},
        run={"name": "frozen", "stall_timeout_s": 60, "collective_timeout_s": 6}, storage={"path": str(tmp_path)},
        scaling={"workers": 2},
    )  # fmt: skip
    folder = RunFolder.of(config)
    folder.take_over(config, facts)
    pids = two.begin(workers.train, config=config.model_dump(mode="json"), facts=facts.to_json(), owner=folder.owner)
    deadline = time.monotonic() + 200
    while not checkpoint.complete(folder.store):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(pids[1], signal.SIGSTOP)
    try:
        status, words = two.outcome(0)
    finally:
        os.kill(pids[1], signal.SIGKILL)
    assert status == "raised"
    (last,) = [line for line in words.splitlines() if line.startswith("pipeline.errors.WorkerFailed: rank 0 at step ")]
    assert "imed out" in last
    assert last in folder.store.read("logs/attempt-001-rank-000.log").decode()
    # What was saved before is what the next attempt begins with.
    assert len(checkpoint.complete(folder.store)) >= 1
