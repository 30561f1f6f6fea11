"""A process that stands still ends itself and says where; one that only takes its time does not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A worker of its own process, whose board is a file and whose training is given as code.
WORKER = """
import ctypes, logging, sys, time
from pathlib import Path
from pipeline import activity
from pipeline.watchdog import Watchdog
logging.basicConfig(stream=sys.stdout)
folder = Path(sys.argv[1])

class Board:
    def begins(self, rank): (folder / "standing").unlink(missing_ok=True)
    def stands(self, rank, words): (folder / "standing").write_text(f"{rank} {words}")
    def failed(self, words): (folder / "failed").write_text(words)
    def standing(self): return {0: "at step 7, forward and backward", 1: "me"}

with Watchdog(1, 1.0, Board(), lambda: (folder / "flushed").touch()):
    print("begun", flush=True)
    activity.mark("waiting for a batch", 7)
CODE
print("done", flush=True)
"""


def worker(folder: Path, code: str) -> "subprocess.Popen[str]":
    lines = "\n".join(f"    {line}" for line in code.splitlines())
    return subprocess.Popen(
        [sys.executable, "-c", WORKER.replace("CODE", lines), str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize("code", ["time.sleep(100)", "while True: pass"], ids=["asleep", "busy in Python"])
def test_a_worker_that_stands_still_ends_with_rank_step_and_activity(tmp_path: Path, code: str) -> None:
    process = worker(tmp_path, f"def stuck_here():\n  {code}\nstuck_here()")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 70
    words = (tmp_path / "failed").read_text()
    assert words.startswith("rank 1 has stood still for 1 s at step 7, waiting for a batch; ")
    assert "run.stall_timeout_s=1" in words
    # What the others are at tells who holds up whom.
    assert words.endswith("; rank 0 at step 7, forward and backward")
    assert "stuck_here" in out
    assert "done" not in out
    assert (tmp_path / "flushed").exists()
    assert (tmp_path / "standing").read_text() == "1 at step 7, waiting for a batch"


def test_a_worker_stuck_in_c_code_that_stops_all_threads_is_ended_too(tmp_path: Path) -> None:
    # PyDLL keeps the interpreter's lock, so that no thread of Python runs.
    process = worker(tmp_path, "ctypes.PyDLL(None).sleep(100)")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Timeout" in err
    assert "<string>" in err


def test_a_worker_that_goes_on_slowly_is_left_alone(tmp_path: Path) -> None:
    process = worker(tmp_path, "for step in range(4):\n  activity.mark('waiting for a batch', step)\n  time.sleep(0.6)")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "begun\ndone\n"), err
    assert not (tmp_path / "failed").exists()


def test_a_save_may_take_as_much_longer_as_uploads_are_tried_again(tmp_path: Path) -> None:
    process = worker(tmp_path, "activity.mark('saving', 7, extra_s=20)\ntime.sleep(2.5)")
    assert process.communicate(timeout=60)[0] == "begun\ndone\n"
    assert process.returncode == 0


def test_time_in_which_the_whole_process_was_stopped_does_not_count(tmp_path: Path) -> None:
    process = worker(tmp_path, "for step in range(20):\n  activity.mark('step', step)\n  time.sleep(0.1)")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate(timeout=60)[0] == "done\n"
    assert process.returncode == 0


def test_an_unexpected_error_is_told_with_rank_step_and_activity(tmp_path: Path) -> None:
    process = worker(tmp_path, "raise RuntimeError('Connection closed by peer\\nand more')")
    _, err = process.communicate(timeout=60)
    assert err.strip().splitlines()[-1] == (
        "pipeline.errors.WorkerFailed: rank 1 at step 7, waiting for a batch: RuntimeError: Connection closed by peer; "
        "rank 0 at step 7, forward and backward"
    )


def test_leaving_python_is_told_as_such(tmp_path: Path) -> None:
    process = worker(tmp_path, "sys.exit(0)")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "WorkerFailed: rank 1 at step 7, waiting for a batch: SystemExit: 0; rank 0" in err.splitlines()[-1]


def test_an_error_that_trying_again_would_not_mend_stays_what_it_is(tmp_path: Path) -> None:
    process = worker(tmp_path, "from pipeline.errors import RunError\nraise RunError('the loss is nan at step 7')")
    _, err = process.communicate(timeout=60)
    assert err.strip().splitlines()[-1] == "pipeline.errors.RunError: the loss is nan at step 7"
