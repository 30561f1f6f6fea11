"""The matrix of strategies on NCCL in bf16, one process for each GPU, and what CPUs lack: FSDP 1, fp16, offloads.

    make test-gpu

One GPU is enough to run it; a world of one shards into one shard. It has not been run yet: docs/strategies.md.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import runs
from pipeline.local_store import LocalStore
from tests.gloo import strategy_cases
from tests.gloo.conftest import TINY, job
from tests.gloo.test_strategies import BASE, BF16_RELATIVE, MIDDLE, STRATEGIES
from tests.gloo.world import World

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

GPU_STRATEGIES: dict[str, dict[str, object]] = {
    **STRATEGIES,
    "fsdp-1": {"kind": "fsdp", "version": 1, "state_dict": "full"},
}
__all__ = ["job"]  # the fixture


@pytest.fixture(scope="module")
def gpus() -> int:
    import torch

    found = int(torch.cuda.device_count())
    if found == 0:
        pytest.skip("no GPU on this machine")
    return min(found, 4)


@pytest.fixture(scope="module")
def world(gpus: int) -> Iterator[Callable[[], World]]:
    worlds: list[World] = []

    def of() -> World:
        if not worlds or worlds[-1].broken:
            worlds.append(World(gpus))
        return worlds[-1]

    yield of
    for started in worlds:
        started.close()


def arguments(job: Any, gpus: int, strategy: dict[str, object], precision: str) -> dict[str, Any]:
    """The job of the CPU matrix on GPUs, with a global batch that does not depend on their number."""
    config, facts = job(
        rows=76, eval_rows=31, strategy=strategy, scaling={"workers": gpus}, checkpoint={"every": MIDDLE},
        training={**BASE, "global_batch_size": 24, "gradient_accumulation_steps": 1, "batch_size_per_worker": 8,
                  "max_grad_norm": 0.4, "mixed_precision": precision},
        model={"config": TINY, "from_scratch": True},
    )  # fmt: skip
    from pipeline.strategy import files

    config, _ = files.inlined(config)
    return {"config": config.model_dump(mode="json"), "facts": facts.to_json(), "device": "cuda"}


@pytest.mark.parametrize("name", [name for name in GPU_STRATEGIES if name != "zero-0"])
def test_losses_in_bf16_are_near_ddp_and_a_resumed_run_has_the_unbroken_ones(
    world: Callable[[], World], gpus: int, job: Any, tmp_path: Path, name: str
) -> None:
    ddp = world().run(strategy_cases.train, **arguments(job, gpus, {"kind": "ddp"}, "bf16"))[0]
    made = arguments(job, gpus, GPU_STRATEGIES[name], "bf16")
    first = world().run(strategy_cases.train, **made, run=str(tmp_path / "run"))
    np.testing.assert_allclose(first[0]["losses"], ddp["losses"], rtol=BF16_RELATIVE)
    if gpus > 1 and name.startswith(("fsdp", "zero-3")):
        assert first[0]["held"][0] == pytest.approx(first[0]["held"][1] / gpus, rel=0.05)
    resumed = world().run(strategy_cases.train, **made, run=str(tmp_path / "run"), resume=MIDDLE)
    # Kernels that add in no fixed order differ in the last bits.
    np.testing.assert_allclose(resumed[0]["losses"], first[0]["losses"][MIDDLE:], rtol=1e-3)
    runs.export(LocalStore(tmp_path / "run"), tmp_path / "model", "last")
    texts = strategy_cases.read_texts(made["config"]["data"]["validation"])
    logits, _ = strategy_cases.predicted(tmp_path / "model", texts[:8])
    np.testing.assert_allclose(logits, first[0]["logits"][:8], rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("name", ["fsdp-sharded", "zero-2", "zero-3"])
def test_losses_in_fp16_are_near_those_in_bf16(world: Callable[[], World], gpus: int, job: Any, name: str) -> None:
    curves = [
        world().run(strategy_cases.train, **arguments(job, gpus, GPU_STRATEGIES[name], precision))[0]["losses"]
        for precision in ("bf16", "fp16")
    ]
    np.testing.assert_allclose(curves[1], curves[0], rtol=5e-2)
