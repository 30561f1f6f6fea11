"""A language model, trained by a function of the user's own on Ray Data: one whole run, looked at from every side."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import Config
from pipeline.data.inspect import inspect
from pipeline.storage import Store
from tests import llama
from tests.gloo.test_numbers import ABSOLUTE, RELATIVE, train
from tests.gloo.world import World
from tests.ray.conftest import Program, lines_of, result_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
OWN = """
import torch

from pipeline import Context
from pipeline.tasks import token_losses


def train(context: Context) -> None:
    model = context.model()
    optimizer = context.optimizer(model)
    model, optimizer, scheduler = context.prepare(model, optimizer, context.scheduler(optimizer))
    for _ in context.epochs():
        model.train()
        for batch in context.train:
            with context.accumulate(model, batch):
                loss = model(**batch).loss * batch.share
                context.accelerator.backward(loss)
                if context.accelerator.sync_gradients:
                    context.accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            context.log(loss=loss)
        model.eval()
        losses, tokens = 0.0, 0.0
        for batch in context.validation:
            with torch.no_grad():
                found = token_losses(model(**batch).logits, batch["labels"])
            for_rows = context.gather(batch, *found)
            losses, tokens = losses + for_rows[0].sum(), tokens + for_rows[1].sum()
        context.evaluated({"loss": losses / tokens, "perplexity": torch.exp(losses / tokens)})
"""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[World]:
    world = World(1, str(tmp_path))
    yield world
    world.close()


def test_a_language_model_by_a_function_of_the_users_own_gets_the_numbers_of_the_built_in_loop(
    program: Program, store: Store, alone: World, tmp_path: Path
) -> None:
    model = llama.save(tmp_path / "llama")
    files = {
        "train": llama.write(tmp_path / "train.jsonl", llama.rows("train.csv", 211)),
        "validation": llama.write(tmp_path / "validation.jsonl", llama.rows("test.csv", 43)),
    }
    (program.folder / "my_language.py").write_text(OWN)
    values: dict[str, dict[str, object]] = {
        "run": {"name": "language", "train_func": "my_language:train"},
        "model": {"path": model, "task": "causal-lm"},
        "data": {
            "engine": "ray", "max_length": 96, "columns": {"prompt": "prompt", "completion": "completion"}, **files,
        },
        "training": {"epochs": 2, "learning_rate": 5e-3, "global_batch_size": 6},
        "scaling": {"workers": 2},
    }  # fmt: skip
    file = program.write("language", values)
    wrong = program.run("train", "-c", file, "run.train_func=my_language:nothing", status=2)
    assert "run.train_func: found 'my_language:nothing', expected package.module:function" in wrong.stderr
    program.run("train", "-c", file)

    run = store.child("language")
    built_in = {
        **values, "run": {"name": "language"}, "data": {**values["data"], "engine": "torch"},
        "scaling": {"workers": 1}, "storage": {"path": str(tmp_path)},
    }  # fmt: skip
    config = Config.model_validate(built_in)
    expected = train(alone, (config, inspect(config)))[0]
    steps = [line for line in lines_of(run) if "learning_rate" in line]
    assert [line["step"] for line in steps] == [line["step"] for line in expected["steps"]]
    assert [line["learning_rate"] for line in steps] == [line["learning_rate"] for line in expected["steps"]]
    losses, wanted = ([line["loss"] for line in lines] for lines in (steps, expected["steps"]))
    np.testing.assert_allclose(losses, wanted, rtol=RELATIVE, atol=ABSOLUTE)

    result = result_of(run)
    final = expected["history"][-1]
    assert (result["status"], result["steps"], result["epochs"]) == ("finished", len(steps), 2.0)
    tokenizer = llama.tokenizer()
    tokens = [
        len(tokenizer(row["prompt"])["input_ids"])
        + len(tokenizer(row["completion"], add_special_tokens=False)["input_ids"])
        + 1
        for row in llama.rows("train.csv", 211)
    ]
    cut = sum(count > 96 for count in tokens)
    assert (result["train_rows"], result["eval_rows"], result["truncated_rows"]) == (211, 43, cut)
    assert result["metrics"]["eval_rows"] == 43
    assert result["metrics"]["eval_loss"] == pytest.approx(final["eval_loss"], rel=RELATIVE)
    assert result["metrics"]["eval_perplexity"] == pytest.approx(final["eval_perplexity"], rel=1e-3)
    assert result["final_learning_rate"] == 0.0
    assert 0 < result["train_seconds"] <= result["seconds"]
    best = min(result["history"], key=lambda entry: entry["eval_perplexity"])
    assert result["best_checkpoint"] == f"checkpoint-{best['step']:08d}-a001"

    assert "is complete" in program.run("train", "-c", file).stdout
    said = program.run("runs", "export", "language", str(tmp_path / "model"), "--checkpoint", "last").stdout
    assert "AutoModelForCausalLM.from_pretrained" in said
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").config.model_type == "llama"
