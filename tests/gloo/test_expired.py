"""A session token that expires while a run trains: what is said, what stays, and how it goes on with a new one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import checkpoint
from pipeline.embedded import embedded_store
from pipeline.errors import RunError, UserError
from pipeline.storage import open_store
from tests.gloo.test_resume import start
from tests.gloo.world import World
from tests.s3.proxy import Handler, Seen, answers, proxy_before

pytestmark = pytest.mark.timeout(600)


def test_a_run_whose_token_expires_says_so_and_a_new_one_goes_on_from_its_last_checkpoint(
    job: Callable[..., Any], tmp_path: Path
) -> None:
    expired = answers(400, "ExpiredToken", "The provided token has expired.")
    with embedded_store(tmp_path / "s3") as server, proxy_before(server) as proxy:

        def expire(handler: Handler, seen: Seen) -> bool:
            proxy.spoil(expired, times=100_000)
            return expired(handler, seen)

        config, _ = job(
            rows=110, eval_rows=30, training={"epochs": 2, "global_batch_size": 24}, run={"name": "expiring"},
            storage=proxy.storage.model_dump(),
        )  # fmt: skip
        run = open_store(server).child("expiring")
        # Processes of its own, which have the server's keys in their environment.
        world = World(1)
        try:
            proxy.spoil(expire, "PUT", "checkpoint-00000010-a001/model")
            with pytest.raises(RunError) as caught:
                start(world, config)
            (problem,) = caught.value.problems
            assert "cannot write s3://pipeline/runs/expiring/checkpoint-00000010-a001/model.safetensors" in problem
            assert "the session token has expired; get new credentials and start the same run again" in problem
            assert [name.step for name in checkpoint.complete(run)] == [5]
            assert not run.exists("result.json")
            # Started again with the old one it is refused before anything starts, in the same words.
            with pytest.raises(UserError, match=r"step 'list' failed: the session token has expired"):
                start(world, config)
            proxy.heal()
            result = start(world, config)
        finally:
            world.close()
        assert (result.status, result.steps, result.resumed_from_step, result.attempts) == ("finished", 10, 5, 2)
        assert [name.step for name in checkpoint.complete(run)] == [5, 10]
