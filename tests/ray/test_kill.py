"""Killed in the middle of an epoch, a run ends with the numbers of an unbroken one."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline.storage import Store
from tests.ray.conftest import DEADLINE_S, Program, _engine, job, lines_of, result_of, wait_for_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
Unbroken = Callable[[str], Store]


def _same_end(run: Store, unbroken: Store) -> None:
    result, expected = result_of(run), result_of(unbroken)
    assert result["parameters_sha256"] == expected["parameters_sha256"]
    metrics = {key: value for key, value in result["metrics"].items() if key != "eval_seconds"}
    assert metrics == {key: value for key, value in expected["metrics"].items() if key != "eval_seconds"}
    same = ("step", "loss", "learning_rate", "grad_norm")
    assert [[line.get(key) for key in same] for line in lines_of(run)] == [
        [line.get(key) for key in same] for line in lines_of(unbroken)
    ]
    assert result["attempts"] == 2
    assert 0 < result["resumed_from_step"] < result["steps"]


def _start(program: Program, name: str, engine: str) -> tuple[str, subprocess.Popen[str]]:
    file = program.write(name, job("train.csv", "validation.csv", run={"name": name}, data=_engine(engine)))
    return file, program.start("train", "-c", file)


@pytest.mark.parametrize("engine", ["ray", "torch"])
def test_a_killed_driver_goes_on_where_it_was(unbroken: Unbroken, program: Program, store: Store, engine: str) -> None:
    name = f"driver-{engine}"
    file, process = _start(program, name, engine)
    wait_for_checkpoint(store.child(name), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not store.child(name).exists("result.json")
    program.run("train", "-c", file)
    _same_end(store.child(name), unbroken(engine))


@pytest.mark.parametrize("engine", ["ray", "torch"])
def test_a_killed_worker_is_replaced(unbroken: Unbroken, program: Program, store: Store, engine: str) -> None:
    name = f"worker-{engine}"
    _, process = _start(program, name, engine)
    run = store.child(name)
    wait_for_checkpoint(run, process)
    victims = _workers(process.pid)
    assert len(victims) == 2
    os.kill(victims[1], signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, f"{out[-2000:]}\n{err[-5000:]}"
    assert "resumes from checkpoint" in err
    _same_end(run, unbroken(engine))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_told_to_end_says_how_to_go_on_and_leaves_no_process(
    unbroken: Unbroken, program: Program, store: Store, number: signal.Signals
) -> None:
    name = f"told-{number.name.lower()}"
    file, process = _start(program, name, "torch")
    wait_for_checkpoint(store.child(name), process)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err[-3000:]
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [
        "error: interrupted; the same command continues the run"
    ]
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    program.run("train", "-c", file)
    _same_end(store.child(name), unbroken("torch"))


def _workers(driver: int) -> list[int]:
    """Process numbers of the driver's training workers, in the order of their start."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        listed = subprocess.run(["ps", "-eo", "pid,sess,args"], capture_output=True, text=True, check=True).stdout
        found = [line.split(None, 2) for line in listed.splitlines()[1:]]
        workers = [
            int(pid) for pid, _, command in found if command.startswith("ray::RayTrainWorker") and _of(int(pid), driver)
        ]
        if workers:
            return sorted(workers)
        time.sleep(0.1)
    raise TimeoutError("no training workers within 10 s")


def _of(process: int, driver: int) -> bool:
    """Whether a process descends from the driver; Ray's daemons are its children."""
    while process > 1:
        if process == driver:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
        except FileNotFoundError:
            return False
    return False
