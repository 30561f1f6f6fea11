"""A run in which a metric hangs and then a worker is frozen ends by itself, each time from its last checkpoint."""

import os
import signal
from pathlib import Path

import pytest

from pipeline.storage import Store
from tests.ray.conftest import DEADLINE_S, Program, _engine, job, lines_of, result_of, wait_for_checkpoint
from tests.ray.test_kill import _workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# A metric of the user's own that never comes back, the first time it is asked.
HANGS_ONCE = """
import time
from pathlib import Path

import datasets
import evaluate

class HangsOnce(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        mark = Path("MARK")
        if not mark.exists():
            mark.touch()
            time.sleep(100_000)
        return {"right": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""
LIMIT_S = 60


def test_a_metric_that_hangs_and_a_frozen_worker_are_said_and_survived(
    program: Program, store: Store, tmp_path: Path
) -> None:
    module = tmp_path / "hangs_once.py"
    module.write_text(HANGS_ONCE.replace("MARK", str(tmp_path / "mark")))
    limits = {"name": "stall", "stall_timeout_s": LIMIT_S, "collective_timeout_s": LIMIT_S, "max_failures": 2}
    metrics = {"names": ["accuracy", str(module)], "best": "accuracy"}
    values = job("train.csv", "validation.csv", run=limits, data=_engine("torch"), metrics=metrics)
    program.environ["HF_MODULES_CACHE"] = str(tmp_path / "modules")
    process = program.start("train", "-c", program.write("stall", values))
    run = store.child("stall")
    try:
        # The metric hangs at step 13; the second attempt resumes from step 10 and saves again at 15.
        assert wait_for_checkpoint(run, process, 15).attempt == 2
        os.kill(_workers(process.pid)[1], signal.SIGSTOP)
        out, err = process.communicate(timeout=2 * DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{out[-2000:]}\n{err[-5000:]}"
    assert f"rank 0 has stood still for {LIMIT_S} s at step 13, computing metrics; it is ended after " in err
    result = result_of(run)
    assert (result["status"], result["steps"], result["attempts"]) == ("finished", 39, 3)
    assert result["resumed_from_step"] >= 15
    steps = [line["step"] for line in lines_of(run) if "learning_rate" in line]
    assert steps == list(range(1, 40))
    log = run.read("logs/attempt-001-rank-000.log").decode()
    assert f"run.stall_timeout_s={LIMIT_S}" in log
    assert "in _compute" in log
    frozen = "".join(run.read(entry.name).decode() for entry in run.list("logs") if "attempt-002" in entry.name)
    assert "WorkerFailed" in frozen or "has stood still" in frozen
