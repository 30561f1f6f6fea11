"""Under every strategy: a worker is killed in the middle of an accumulation, and the run ends as if it had not been."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import checkpoint, tracking
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.run import RunFolder
from pipeline.storage import Store
from tests.gloo import workers
from tests.gloo.test_strategies import ALL, DDP, EPOCH, MIDDLE, STEPS, STRATEGIES, made
from tests.gloo.world import World

pytestmark = pytest.mark.timeout(900)
Worlds = Callable[[int], World]
# The last step before the second epoch's end; saved by then is that of MIDDLE.
KILLED = 2 * EPOCH - 1


def begun(job: Callable[..., Any], name: str, path: Path) -> tuple[dict[str, Any], Store]:
    """A run under a strategy, taken over by a driver: what its workers are given, and its folder."""
    values = made(job, STRATEGIES.get(name, DDP))
    config = Config.model_validate(values["config"] | {"storage": {"path": str(path)}, "run": {"name": "run"}})
    folder = RunFolder.of(config)
    folder.take_over(config, Facts.from_json(values["facts"]))
    return values | {"config": config.model_dump(mode="json"), "owner": folder.owner}, folder.store


def steps_of(run: Store) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key in ("step", "loss", "learning_rate", "grad_norm")}
        for line in tracking.merged(run, STEPS)
        if "learning_rate" in line
    ]


# That of DDP is killed in tests/ray too.
@pytest.mark.parametrize("name", [pytest.param("ddp", marks=pytest.mark.slow), *ALL])
def test_a_run_whose_worker_is_killed_ends_with_the_numbers_of_an_unbroken_one(
    world: Worlds, job: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    arguments, unbroken = begun(job, name, tmp_path / "unbroken")
    expected = world(2).run(workers.train, **arguments)[0]

    arguments, run = begun(job, name, tmp_path / "killed")
    mortal = World(2, str(tmp_path))
    try:
        mortal.begin(workers.train_and_be_killed, **arguments, step=KILLED, saved=MIDDLE)
        assert mortal.outcome(1) == ("ended", -signal.SIGKILL)
        assert mortal.outcome(0)[0] in ("raised", "ended")
    finally:
        mortal.close()
    assert [found.step for found in checkpoint.complete(run)] == [EPOCH, MIDDLE]

    again = world(2).run(workers.train, **arguments)[0]
    assert (again["attempt"], again["resumed_from_step"]) == (2, MIDDLE)
    assert again["parameters_sha256"] == expected["parameters_sha256"]
    for key in ("history", "step"):
        assert _timeless(again["state"][key]) == _timeless(expected["state"][key])
    assert steps_of(run) == steps_of(unbroken)
    assert [line["step"] for line in steps_of(run)] == list(range(1, STEPS + 1))


def _timeless(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [{key: found for key, found in entry.items() if key != "eval_seconds"} for entry in value]
