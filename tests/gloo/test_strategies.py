"""Every strategy on two processes: the numbers of DDP, shards that are real, runs resumed, exported and resharded."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import checkpoint, runs, shards
from pipeline.config import Config
from pipeline.data.inspect import Facts
from pipeline.local_store import LocalStore
from pipeline.strategy import files
from tests.gloo import strategy_cases
from tests.gloo.conftest import TINY
from tests.gloo.world import World
from tests.unit.test_strategy_settings import PUBLISHED_ZERO_2, PUBLISHED_ZERO_3

pytestmark = pytest.mark.timeout(1200)
Worlds = Callable[[int], World]
Job = Callable[..., tuple[Config, Facts]]

# Sums of float32 in another order.
RELATIVE, ABSOLUTE = 2e-4, 2e-5
# Losses in bf16: autocast under DDP and FSDP2, all of the model under DeepSpeed.
BF16_RELATIVE = 2e-2
SECONDS = 60

ZERO = {"kind": "deepspeed"}
DDP: dict[str, object] = {"kind": "ddp"}
OFFLOAD = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
STRATEGIES: dict[str, dict[str, object]] = {
    "fsdp-sharded": {"kind": "fsdp", "state_dict": "sharded"},
    "zero-3": {**ZERO, "zero_stage": 3},
    "fsdp-full": {"kind": "fsdp", "state_dict": "full"},
    "fsdp-recomputing": {"kind": "fsdp", "activation_checkpointing": True, "reshard_after_forward": False},
    "fsdp-offload": {"kind": "fsdp", "cpu_offload": True},
    "zero-0": {**ZERO, "zero_stage": 0},
    "zero-1": {**ZERO, "zero_stage": 1},
    "zero-2": {**ZERO, "zero_stage": 2},
    "zero-3-offload": {**ZERO, "zero_stage": 3, **OFFLOAD},
}
# One of each library stays in the core, which CI runs.
CORE = ("fsdp-sharded", "zero-3")
ALL = [pytest.param(name, marks=() if name in CORE else pytest.mark.slow) for name in STRATEGIES]
# 76 rows are three steps of 24 in 3 micro-batches and one of 4 rows in a single one; step 5 is in the second epoch.
BASE = {"batch_size_per_worker": 4, "gradient_accumulation_steps": 3, "epochs": 3, "learning_rate": 3e-3}
STEPS, EPOCH, MIDDLE = 12, 4, 5


def made(job: Job, strategy: dict[str, object], dropout: float = 0.1, **training: object) -> dict[str, Any]:
    """The job under a strategy, as `cases` take it."""
    config, facts = job(
        rows=76, eval_rows=31, strategy=strategy, scaling={"workers": 2}, checkpoint={"every": MIDDLE},
        training={**BASE, "max_grad_norm": 0.4, **training},
        model={"config": {**TINY, "hidden_dropout_prob": dropout}, "from_scratch": True},
    )  # fmt: skip
    config, _ = files.inlined(config)
    return {"config": config.model_dump(mode="json"), "facts": facts.to_json()}


@pytest.fixture(scope="module")
def unbroken(
    world: Worlds, job: Job, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[list[Any], str]]:
    """What an undisturbed run of a strategy gave on each rank, and its folder; trained once."""
    done: dict[str, tuple[list[Any], str]] = {}

    def of(name: str) -> tuple[list[Any], str]:
        if name not in done:
            folder = str(tmp_path_factory.mktemp(name))
            arguments = made(job, STRATEGIES.get(name, DDP))
            done[name] = world(2).run(strategy_cases.train, **arguments, run=folder), folder
        return done[name]

    return of


Unbroken = Callable[[str], tuple[list[Any], str]]


@pytest.mark.parametrize("name", ALL)
def test_losses_and_gradient_norms_are_those_of_ddp(unbroken: Unbroken, name: str) -> None:
    expected, found = unbroken("ddp")[0][0], unbroken(name)[0][0]
    assert len(expected["losses"]) == STEPS
    assert expected["micro_batches"] == [3, 3, 3, 1]
    assert max(expected["norms"]) > 0.4, "nothing was clipped"
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=RELATIVE, atol=ABSOLUTE)
    np.testing.assert_allclose(found["norms"], expected["norms"], rtol=2e-3)
    assert found["rates"] == expected["rates"]
    assert [entry["eval_rows"] for entry in found["history"]] == [31, 31, 31]
    np.testing.assert_allclose(
        [entry["eval_loss"] for entry in found["history"]], [entry["eval_loss"] for entry in expected["history"]],
        rtol=RELATIVE,
    )  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_run_resumed_in_the_middle_of_an_epoch_or_after_one_has_the_numbers_of_an_unbroken_one(
    world: Worlds, job: Job, unbroken: Unbroken, name: str
) -> None:
    results, folder = unbroken(name)
    # That of step 4 was saved after an evaluation, which leaves some of FSDP2's parameters gathered.
    for step in (MIDDLE, EPOCH):
        resumed = world(2).run(strategy_cases.train, **made(job, STRATEGIES[name]), run=folder, resume=step)
        for rank, result in enumerate(resumed):
            assert result["first"] == step
            assert result["losses"] == results[rank]["losses"][step:]
            assert result["norms"] == results[rank]["norms"][step:]
            assert result["rates"] == results[rank]["rates"][step:]
            assert result["history"] == results[rank]["history"]
            assert result["print"] == results[rank]["print"]
            assert result["seconds"]["load"] < SECONDS


@pytest.mark.parametrize("name", ALL)
def test_an_export_predicts_in_a_process_of_its_own_what_the_model_in_memory_does(
    job: Job, unbroken: Unbroken, tmp_path: Path, name: str
) -> None:
    results, folder = unbroken(name)
    assert runs.export(LocalStore(Path(folder)), tmp_path / "model", "last") == str(checkpoint.Name(1, STEPS))
    assert not [path for path in (tmp_path / "model").iterdir() if path.is_dir()]
    config = made(job, STRATEGIES[name])["config"]
    texts = strategy_cases.read_texts(config["data"]["validation"])
    logits, parameters = strategy_cases.predicted(tmp_path / "model", texts[:8])
    np.testing.assert_allclose(logits, results[0]["logits"][:8], rtol=1e-3, atol=1e-5)
    assert parameters == results[0]["held"][1]


@pytest.mark.parametrize("name", ALL)
def test_each_rank_holds_and_writes_its_share(unbroken: Unbroken, name: str) -> None:
    results, folder = unbroken(name)
    whole = results[0]["held"][1]
    shards_parameters = name.startswith(("fsdp", "zero-3"))
    shards_moments = shards_parameters or name in ("zero-1", "zero-2")
    for rank, result in enumerate(results):
        assert result["held"][0] == pytest.approx(whole / 2 if shards_parameters else whole, rel=0.02)
        assert result["trained"] == pytest.approx(whole if shards_moments else 2 * whole, rel=0.02)  # two moments each
        own = {file for file in result["files"] if file.endswith(f"rank-{rank:05d}.safetensors")}
        sharded = {f"weights/rank-{rank:05d}.safetensors", f"moments/rank-{rank:05d}.safetensors"}
        assert sharded <= own if name not in ("fsdp-full", "zero-0") else not sharded & own
        assert {file.rsplit(".", 1)[-1] for file in result["files"]} <= {"json", "safetensors", "txt"}
    for name_ in checkpoint.complete(LocalStore(Path(folder))):
        with shards.Reader(Path(folder) / str(name_)) as reader:
            numbers = {key: math.prod(shape) for key, shape in reader.shapes.items()}
        assert sum(numbers[key] for key in reader.weights) == whole
        assert sum(numbers.values()) == 3 * whole, "moments are missing"


@pytest.mark.parametrize("name", ALL)
def test_every_rank_enters_every_save_and_evaluation_within_a_minute(unbroken: Unbroken, name: str) -> None:
    # A rank that stays away leaves the others waiting until the world's own limit, which is an error.
    for result in unbroken(name)[0]:
        assert result["seconds"].keys() == {"save", "evaluate"}
        assert max(result["seconds"].values()) < SECONDS


@pytest.mark.parametrize("name", ["ddp", *ALL])
def test_the_loss_of_a_linear_regression_falls_in_every_epoch(world: Worlds, name: Any) -> None:
    strategy = {**STRATEGIES.get(name, DDP), "activation_checkpointing": False}
    if strategy["kind"] == "fsdp":
        strategy |= {"wrap": ["Linear"]}
    config, _ = files.inlined(
        Config.model_validate({"strategy": strategy, "scaling": {"workers": 2}, "training": {"learning_rate": 0.02}})
    )
    losses = world(2).run(strategy_cases.regress, config=config.model_dump(mode="json"))[0]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]


COUNTS = [(1, 2), (2, 1), (2, 3)]


@pytest.mark.parametrize(
    ("name", "workers", "then"),
    [
        pytest.param(name, *counts, marks=() if (name, counts) in {("fsdp-sharded", (2, 3)), ("zero-3", (2, 1))} else
                     pytest.mark.slow)
        for name in ("fsdp-sharded", "fsdp-full", "zero-1", "zero-2", "zero-3", "zero-3-offload")
        for counts in COUNTS
    ],
)  # fmt: skip
def test_a_checkpoint_goes_on_with_another_number_of_workers(
    world: Worlds, job: Job, tmp_path: Path, name: str, workers: int, then: int
) -> None:
    batch = {"batch_size_per_worker": 24, "gradient_accumulation_steps": 1, "global_batch_size": 24, "epochs": 2}

    def arguments(count: int) -> dict[str, Any]:
        values = made(job, STRATEGIES[name], dropout=0.0, **batch)
        return values | {"config": values["config"] | {"scaling": {"workers": count}}}

    first = world(workers).run(strategy_cases.train, **arguments(workers), run=str(tmp_path))[0]
    resumed = world(then).run(strategy_cases.train, **arguments(then), run=str(tmp_path), resume=MIDDLE)[0]
    assert resumed["first"] == MIDDLE
    np.testing.assert_allclose(resumed["losses"], first["losses"][MIDDLE:], rtol=RELATIVE, atol=ABSOLUTE)
    np.testing.assert_allclose(resumed["norms"], first["norms"][MIDDLE:], rtol=2e-3)
    np.testing.assert_allclose(resumed["logits"], first["logits"], rtol=5e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp-sharded", "zero-1", "zero-2", "zero-3", "zero-3-offload"])
def test_losses_in_bf16_stay_near_those_of_ddp_in_bf16(world: Worlds, job: Job, name: str) -> None:
    expected, found = (
        world(2).run(strategy_cases.train, **made(job, strategy, mixed_precision="bf16"))[0]
        for strategy in (DDP, STRATEGIES[name])
    )
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=BF16_RELATIVE)
    assert np.mean(found["losses"][-4:]) < np.mean(found["losses"][:4])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "training"),
    [
        ({"kind": "deepspeed", "config": PUBLISHED_ZERO_3}, {}),
        ({"kind": "deepspeed", "config": PUBLISHED_ZERO_2},
         {"learning_rate": 2e-5, "batch_size_per_worker": 16, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0,
          "lr_scheduler": "constant"}),
        # Full state and optimizer dictionaries, not offloaded and not of rank 0 only.
        ({"kind": "fsdp", "state_dict": "full", "cpu_offload": False}, {}),
    ],
    ids=["zero-3 with CPU offload", "zero-2 with an optimizer section", "fsdp with full state dicts"],
)  # fmt: skip
def test_a_published_dictionary_runs_as_it_stands(
    world: Worlds, job: Job, strategy: dict[str, object], training: dict[str, Any]
) -> None:
    results = world(2).run(strategy_cases.train, **made(job, strategy, **training))
    assert np.isfinite(results[0]["losses"]).all()
    assert len(results[0]["losses"]) == 3 * len(results[0]["micro_batches"])
    assert results[0]["print"] == results[1]["print"]


def test_a_strategy_that_was_quietly_dropped_is_an_error_before_the_first_step(world: Worlds, job: Job) -> None:
    found = world(2).run(strategy_cases.dropped_plugin, **made(job, STRATEGIES["fsdp-sharded"]))
    for problems in found:
        assert problems == ["strategy.kind: fsdp was asked for, but the prepared model is a DistributedDataParallel"]


def test_a_single_layer_is_sharded_and_its_embeddings_once(world: Worlds, job: Job) -> None:
    model = {"config": {"num_hidden_layers": 1}, "from_scratch": False, "lora": {"r": 4}}
    results = {}
    for kind in ("ddp", "fsdp"):
        config, facts = job(rows=33, eval_rows=9, model=model, strategy={"kind": kind}, scaling={"workers": 2})
        given = {"config": config.model_dump(mode="json"), "facts": facts.to_json()}
        results[kind] = world(2).run(strategy_cases.train, **given)[0]
    np.testing.assert_allclose(results["fsdp"]["losses"], results["ddp"]["losses"], rtol=RELATIVE, atol=ABSOLUTE)
