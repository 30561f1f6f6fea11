"""Causal language models: the same numbers on 1, 2 and 3 workers, as of each document alone."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import Config
from tests.gloo import cases, proofs
from tests.gloo.test_numbers import ABSOLUTE, RELATIVE, train
from tests.gloo.world import World

pytestmark = pytest.mark.timeout(600)
Worlds = Callable[[int], World]
Made = tuple[Config, Any]
PAIR = {"prompt": "prompt", "completion": "completion"}


@pytest.mark.parametrize("columns", [{}, PAIR], ids=["text", "completion"])
def test_one_two_and_three_workers_give_the_curve_of_documents_that_are_trained_on_alone(
    world: Worlds, language: Callable[..., Made], columns: dict[str, object]
) -> None:
    made = language(data={"columns": columns})
    config, facts = made
    plain = world(1).run(cases.losses_of_documents_alone, config=config.model_dump(mode="json"), facts=facts.to_json())[
        0
    ]
    losses = plain["losses"]
    assert losses[-3:].mean() < 0.9 * losses[:3].mean()
    for workers in (1, 2, 3):
        result = train(world(workers), made)[0]
        np.testing.assert_allclose([line["loss"] for line in result["steps"]], losses, rtol=RELATIVE, atol=ABSOLUTE)
        final = result["history"][-1]
        assert final["eval_rows"] == 43
        assert final["eval_tokens"] == plain["eval_tokens"]
        assert final["eval_loss"] == pytest.approx(plain["eval_loss"], rel=RELATIVE)
        assert final["eval_perplexity"] == pytest.approx(math.exp(plain["eval_loss"]), rel=1e-3)


def test_every_document_is_used_once_an_epoch_in_sequences_that_are_nearly_full(
    world: Worlds, language: Callable[..., Made]
) -> None:
    results = train(world(3), language())
    used = [row for result in results for row in result["rows"]]
    sequences = max(used) + 1
    assert sorted(used) == sorted([*range(sequences), *range(sequences)])
    assert sequences < 211 / 2  # several texts in each
    # Accumulated over the epoch: what fills sequences up is less than a twentieth.
    steps = results[0]["steps"]
    assert np.mean([line["padding_ratio"] for line in steps]) < 0.05


def test_the_lowest_perplexity_is_the_best(world: Worlds, language: Callable[..., Made], tmp_path: Path) -> None:
    made = language(training={"epochs": 3, "learning_rate": 5e-3, "global_batch_size": 6, "eval_every": 5})
    history = train(world(2), made, folder=str(tmp_path))[0]["history"]
    found = [entry["eval_perplexity"] for entry in history]
    assert len(found) > 3
    assert found[-1] < found[0]
    saved = {int(path.name.removeprefix("step-")) for path in tmp_path.iterdir()}
    best = [entry["step"] for n, entry in enumerate(history) if entry["eval_perplexity"] <= min(found[: n + 1])]
    assert set(best) <= saved


def test_a_run_resumed_in_the_middle_of_an_epoch_ends_as_an_unbroken_one(
    world: Worlds, language: Callable[..., Made], tmp_path: Path
) -> None:
    made = language(checkpoint={"every": 5})
    unbroken = train(world(2), made, folder=str(tmp_path))[0]
    resumed = train(world(2), made, resume=str(tmp_path / "step-5"))[0]
    assert [line["loss"] for line in resumed["steps"]] == [line["loss"] for line in unbroken["steps"][5:]]
    assert resumed["print"] == unbroken["print"]


LOADS_ALONE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
assert "pipeline" not in sys.modules
folder, out = sys.argv[1:]
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    torch.save(model(**tokenizer("where is my card", return_tensors="pt")).logits, out)
"""


def logits_of_a_fresh_process(folder: str | Path, out: Path) -> Any:
    import torch

    subprocess.run([sys.executable, "-W", "ignore", "-c", LOADS_ALONE, str(folder), str(out)], check=True, timeout=240)
    return torch.load(out, weights_only=True)


def test_the_export_gives_the_logits_of_the_trained_model_in_a_fresh_process(
    world: Worlds, language: Callable[..., Made], tmp_path: Path
) -> None:
    import torch

    made = language(training={"epochs": 1, "learning_rate": 5e-3, "global_batch_size": 6})
    result = train(world(2), made, ask="where is my card")[0]
    found = logits_of_a_fresh_process(result["exported"], tmp_path / "logits.pt")
    torch.testing.assert_close(found, torch.tensor(result["logits"]), rtol=0, atol=2e-6)
    before = logits_of_a_fresh_process(made[0].model.path, tmp_path / "before.pt")
    assert (found - before).abs().max() > 0.1


@pytest.mark.parametrize(("broken", "words"), [("documents", "data.packing"), ("causal", "model.task")])
def test_a_model_that_sees_what_it_must_not_is_refused_before_the_first_step(
    world: Worlds, language: Callable[..., Made], broken: str, words: str
) -> None:
    config, _ = language()
    said = world(1).run(proofs.proof_of_a_leaking_model, path=config.model.path, broken=broken)[0]
    assert said.startswith(words)
