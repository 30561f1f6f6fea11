"""A run that was lost after a checkpoint and is started again: to end right there, without its notes, or elsewhere."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.errors import RunError
from tests.gloo.test_resume import Jobs, Worlds, folder_of, metric, start

pytestmark = pytest.mark.timeout(600)


def cut_short(configured: Jobs, **sections: dict[str, object]) -> Path:
    """The folder of a run of 10 steps that was lost after the checkpoint of the ninth."""
    run = Path(configured(**sections).storage.path or "") / "run"
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoint-00000010-a001")
    return run


def test_a_run_that_ends_where_it_already_is_has_the_metrics_of_that_step(world: Worlds, configured: Jobs) -> None:
    saved: dict[str, object] = {"every": 3, "keep": 9}
    start(world(2), configured(checkpoint=saved, scaling={"workers": 2}))
    cut_short(configured)
    there = configured(checkpoint=saved, scaling={"workers": 2}, training={"max_steps": 9})
    result = start(world(2), there)
    assert (result.steps, result.resumed_from_step, result.last_checkpoint) == (9, 9, "checkpoint-00000009-a002")
    measured = start(world(2), configured(checkpoint=saved, scaling={"workers": 2}, run={"name": "other"},
                                          training={"eval_every": 3}))  # fmt: skip
    expected = next(entry for entry in measured.history if entry["step"] == 9)
    assert [entry["step"] for entry in result.history] == [5, 9]
    assert result.metrics["eval_loss"] == expected["eval_loss"] == result.history[-1]["eval_loss"]
    lines = [json.loads(line) for line in folder_of(there).read("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines if "learning_rate" not in line] == [5, 9]


def test_a_run_whose_notes_of_attempts_were_lost_loses_no_line_and_ends_with_its_newest_checkpoint(
    world: Worlds, configured: Jobs
) -> None:
    whole = start(world(1), configured(checkpoint={"every": 3, "keep": 1}))
    run = cut_short(configured)
    shutil.rmtree(run / "attempts")
    again = start(world(1), configured(checkpoint={"every": 3, "keep": 1}))
    assert (again.attempts, again.last_checkpoint) == (2, "checkpoint-00000010-a002")
    assert again.parameters_sha256 == whole.parameters_sha256
    lines = [json.loads(line) for line in folder_of(configured()).read("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines if "learning_rate" in line] == list(range(1, 11))


def test_an_attempt_that_another_has_taken_over_from_sends_no_file_of_its_next_checkpoint(
    world: Worlds, configured: Jobs, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "run"
    taken_over = """Path("RUN").write_text('{"owner": "another", "started": "now"}') * 0.0"""
    config = configured(
        checkpoint={"every": 3}, metrics=metric(tmp_path, taken_over.replace("RUN", str(run / "owner.json")))
    )
    with pytest.raises(RunError, match="a newer attempt has taken over"):
        start(world(1), config)
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-00000003-a001"]
