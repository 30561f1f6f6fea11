"""Adapters: they alone are trained and saved, and what is exported is a plain model again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from pipeline import checkpoint, runs
from pipeline.errors import RunError, UserError
from pipeline.run import RunFolder
from pipeline.strategy import files
from tests import llama
from tests.gloo import strategy_cases
from tests.gloo.test_language import Made, Worlds, logits_of_a_fresh_process
from tests.gloo.test_numbers import ABSOLUTE, RELATIVE, train

pytestmark = pytest.mark.timeout(900)
TRAINING = {"epochs": 1, "learning_rate": 5e-2, "global_batch_size": 6}


def _kept(config: Any, facts: Any, folder: Path, step: int) -> Any:
    """The run's folder in storage with the checkpoint of that step, as a worker of one would have uploaded it."""
    run = RunFolder.of(config)
    run.take_over(config, facts)
    name = checkpoint.Name(1, step)
    checkpoint.upload(run.store, folder / f"step-{step}", name, 0, 1, {"step": step}, 60, run.check_owner)
    return run.store


def test_adapters_alone_are_trained_and_saved_resumed_exactly_and_exported_as_a_plain_model(
    world: Worlds,
    language: Callable[..., Made],
    tmp_path: Path,
) -> None:
    import torch

    made = language(
        run={"name": "adapters"},
        model={"path": language()[0].model.path, "task": "causal-lm", "lora": {"r": 4, "dropout": 0.1}},
        training={**TRAINING, "epochs": 2, "activation_checkpointing": True},
        checkpoint={"every": 4},
        storage={"path": str(tmp_path / "runs")},
    )
    unbroken = train(world(1), made, folder=str(tmp_path), ask="where is my card")[0]
    losses = [line["loss"] for line in unbroken["steps"]]
    # Under random embeddings that stay as they are there is not much to learn.
    assert np.mean(losses[-3:]) < 0.98 * np.mean(losses[:3])
    saved = load_file(tmp_path / "step-4" / "trained.safetensors")
    assert all(".lora_A." in name or ".lora_B." in name for name in saved)
    # Query, key, value, output and three of the feed-forward network, two matrices each, in two layers.
    assert len(saved) == 7 * 2 * 2
    assert not (tmp_path / "step-4" / "model.safetensors").exists()

    resumed = train(world(1), made, resume=str(tmp_path / "step-4"))[0]
    assert [line["loss"] for line in resumed["steps"]] == losses[4:]
    assert resumed["print"] == unbroken["print"]

    store = _kept(*made, tmp_path, len(losses))
    runs.export(store, tmp_path / "model", "last")
    assert runs.loader(store) == "AutoModelForCausalLM"
    found = logits_of_a_fresh_process(tmp_path / "model", tmp_path / "logits.pt")
    torch.testing.assert_close(found, torch.tensor(unbroken["logits"]), rtol=1e-4, atol=1e-5)
    before = logits_of_a_fresh_process(made[0].model.path, tmp_path / "before.pt")
    assert (found - before).abs().max() > 0.1
    runs.export(store, tmp_path / "adapter", "last", adapter_only=True)
    assert {path.name for path in (tmp_path / "adapter").iterdir()} >= {"adapter_config.json", "base.json"}
    assert not (tmp_path / "adapter" / "model.safetensors").exists()

    llama.save(Path(made[0].model.path), initializer_range=0.07)
    with pytest.raises(RunError, match=r"not those that the adapters were trained on"):
        runs.export(store, tmp_path / "other", "last")
    assert not (tmp_path / "other").exists()
    llama.save(Path(made[0].model.path))


def test_one_and_two_workers_give_the_same_curve_with_checkpointed_activations_or_without(
    world: Worlds,
    language: Callable[..., Made],
) -> None:
    curves = []
    for workers, activations in ((1, False), (2, True)):
        made = language(
            model={"path": language()[0].model.path, "task": "causal-lm", "lora": {"r": 4}},
            training={**TRAINING, "activation_checkpointing": activations, "batch_size_per_worker": 2},
        )
        curves.append([line["loss"] for line in train(world(workers), made)[0]["steps"]])
    np.testing.assert_allclose(curves[1], curves[0], rtol=RELATIVE, atol=ABSOLUTE)


def test_a_classifier_with_adapters_keeps_its_new_head_and_exports_as_a_plain_model(
    world: Worlds, job: Callable[..., Any], tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    config, facts = job(
        run={"name": "classifier"},
        model={"config": {"num_hidden_layers": 2}, "from_scratch": False, "lora": {"r": 8}},
        data={"max_length": 48},
        training={"epochs": 3, "learning_rate": 1e-2, "batch_size_per_worker": 12},
        storage={"path": str(tmp_path / "runs")},
    )
    result = train(world(1), (config, facts), folder=str(tmp_path), ask="where is my card")[0]
    assert result["history"][-1]["eval_accuracy"] > 2 / len(facts.labels)
    saved = load_file(tmp_path / f"step-{len(result['steps'])}" / "trained.safetensors")
    assert [name for name in saved if "lora_" not in name] == [
        "base_model.model.classifier.modules_to_save.default.bias",
        "base_model.model.classifier.modules_to_save.default.weight",
    ]
    store = _kept(config, facts, tmp_path, len(result["steps"]))
    runs.export(store, tmp_path / "model", "last")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert model.config.id2label == dict(enumerate(facts.labels))
    given = AutoTokenizer.from_pretrained(tmp_path / "model")("where is my card", return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(model(**given).logits, torch.tensor(result["logits"]), rtol=1e-4, atol=1e-5)


def test_layers_that_do_not_exist_are_refused_by_name(
    world: Worlds,
    language: Callable[..., Made],
) -> None:
    from pipeline.lora import adapted
    from pipeline.model import load_model

    lora = {"r": 4, "target_modules": ["query"]}
    config, _ = language(model={"path": language()[0].model.path, "task": "causal-lm", "lora": lora})
    with pytest.raises(
        UserError, match=r"model.lora.target_modules: found \['query'\], expected names of layers of Llama"
    ):
        adapted(load_model(config.model, config.storage, []), config)


@pytest.mark.parametrize("adapters", [True, False], ids=["adapters", "whole"])
@pytest.mark.parametrize("kind", ["fsdp", "deepspeed"])
def test_sharded_strategies_give_the_numbers_of_ddp_resume_and_export_the_same_model(
    world: Worlds, language: Callable[..., Made], tmp_path: Path, kind: str, adapters: bool
) -> None:
    path = language()[0].model.path
    sections: dict[str, dict[str, object]] = {
        "run": {"name": kind},
        "model": {"path": path, "task": "causal-lm", "lora": {"r": 4} if adapters else {}},
        "training": {**TRAINING, "learning_rate": 2e-2 if adapters else 5e-3, "activation_checkpointing": True},
        "checkpoint": {"every": 3},
        "scaling": {"workers": 2},
        "storage": {"path": str(tmp_path)},
    }
    plain = train(world(2), language(**sections))[0]
    strategy = {"kind": kind} if kind == "fsdp" else {"kind": kind, "zero_stage": 3}
    config, _ = files.inlined(language(**sections, strategy=strategy)[0])
    facts = language()[1]
    given = {"config": config.model_dump(mode="json"), "facts": facts.to_json(), "run": str(tmp_path / kind)}
    results = world(2).run(strategy_cases.train, **given)
    expected = [line["loss"] for line in plain["steps"]]
    np.testing.assert_allclose(results[0]["losses"], expected, rtol=RELATIVE, atol=ABSOLUTE)
    held, whole = results[0]["held"]
    assert held < 0.9 * whole
    resumed = world(2).run(strategy_cases.train, **given, resume=3)
    assert resumed[0]["losses"] == results[0]["losses"][3:]
    assert resumed[0]["print"] == results[0]["print"]

    RunFolder.of(config).take_over(config, facts)
    store = RunFolder.of(config).store
    runs.export(store, tmp_path / "model", "last")
    assert {file.name for file in (tmp_path / "model").iterdir()} >= {"config.json", "model.safetensors"}
    assert _loss_of_an_export(tmp_path / "model", config) == pytest.approx(
        results[0]["history"][-1]["eval_loss"], rel=RELATIVE
    )


def _loss_of_an_export(folder: Path, config: Any) -> float:
    """The mean over all tokens of the validation rows, each row in a forward of its own."""
    import json

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    whole, tokens = 0.0, 0
    for line in Path(config.data.validation).read_text(encoding="utf-8").splitlines():
        ids = tokenizer(json.loads(line)["text"] + tokenizer.eos_token, return_tensors="pt")["input_ids"]
        ids = ids[:, : config.data.max_length]
        with torch.no_grad():
            whole += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return whole / tokens
