"""The store goes away for 20 seconds while a checkpoint is written; the run ends as if it had not."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import checkpoint
from pipeline.storage import Store
from tests.ray.conftest import DEADLINE_S, Program, _engine, job, result_of, wait_for_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def _servers(data_dir: Path) -> list[int]:
    """Process numbers of the S3 server that keeps its data below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if words[0].endswith("weed") and any(str(data_dir) in word for word in words):
                found.append(int(entry.name))
    return found


def test_a_store_that_is_away_for_20_seconds_during_a_checkpoint_costs_nothing(
    program: Program, store: Store, data_dir: Path, unbroken: Callable[[str], Store]
) -> None:
    name = "outage"
    file = program.write(name, job("train.csv", "validation.csv", run={"name": name}, data=_engine("torch")))
    process = program.start("train", "-c", file)
    run = store.child(name)
    first = wait_for_checkpoint(run, process)
    servers = _servers(data_dir)
    assert len(servers) == 1
    # Files of the next checkpoint are on their way from here on: one is saved every five steps.
    os.kill(servers[0], signal.SIGSTOP)
    try:
        time.sleep(20)
    finally:
        os.kill(servers[0], signal.SIGCONT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, f"{out[-2000:]}\n{err[-5000:]}"
    result, expected = result_of(run), result_of(unbroken("torch"))
    assert result["parameters_sha256"] == expected["parameters_sha256"]
    assert (result["attempts"], result["steps"]) == (1, 39)
    complete = checkpoint.complete(run)
    assert complete[-1].step == 39 > first.step
    for checked in complete:
        manifest = run.child(str(checked))
        assert all(manifest.exists(entry) for entry in ("model.safetensors", "optimizer.safetensors", "state.json"))
