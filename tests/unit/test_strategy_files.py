"""Settings that only the workers would have failed of; files of `accelerate config` that say nothing, or two things."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import preflight
from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.model import outline
from pipeline.strategy import files, fsdp, zero_config

OFFLOAD = {"device": "cpu"}
FALSE = "is true; expected false, or "


def problems(mapping: dict[str, Any], gpu: bool, **training: object) -> list[str]:
    values = {"strategy": {"kind": "deepspeed", "config": mapping}, "training": training}
    try:
        config, _ = files.inlined(Config.model_validate(values))
    except UserError as error:
        return error.problems
    return files.problems(config, gpu)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "has no effect here; remove it"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}}, "has no effect here; remove it"),
        ({"zero_optimization": {"stage": 1, "legacy_stage1": True}}, "has no effect here; remove it"),
        ({"zero_optimization": {"allgather_bucket_size": 5}}, "is 5; expected an even number of at least 2"),
        ({"zero_optimization": {"compute_grad_norm": False}}, "is false; expected true"),
        ({"zero_optimization": {"stage3_module_granularity_threshold": 9}}, "is 9; expected 0"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {**OFFLOAD, "ratio": 0.3}}}, "is 0.3; expected 1"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, f"{FALSE}stage 2 with"),
        ({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}, f"{FALSE}stage 2 with"),
        ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, f"{FALSE}bf16_master"),
        ({"gradient_predivide_factor": 4.0}, "is 4.0; expected 1, or zero_optimization.reduce_scatter: false"),
        ({"wandb": {"enabled": True}}, "wandb.enabled is true; expected false, as wandb is not installed here"),
        ({"log_level": "loud"}, "is 'loud'; expected debug or info"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "adam_w_mode is false; expected true"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-6}}}, "warmup_min_lr is 1e-06, but"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "log"}}}, "is 'log'; expected linear"),
    ],
)  # fmt: skip
def test_what_deepspeed_would_refuse_on_the_workers_is_refused_before_them(mapping: dict[str, Any], words: str) -> None:
    (problem,) = problems(mapping, gpu=False)
    assert problem.startswith("strategy.config: ")
    assert words in problem


@pytest.mark.parametrize(
    ("mapping", "gpu"),
    [
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {**OFFLOAD, "ratio": 1.0}}}, False),
        ({"zero_force_ds_cpu_optimizer": True,
          "zero_optimization": {"stage": 3, "offload_optimizer": {**OFFLOAD, "ratio": 0.3}}}, True),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}, False),
        ({"gradient_predivide_factor": 4.0, "zero_optimization": {"stage": 2, "reduce_scatter": False}}, False),
        ({"gradient_predivide_factor": 4.0, "zero_optimization": {"stage": 1}}, False),
        ({"zero_optimization": {"zero_quantized_weights": False, "legacy_stage1": False}}, False),
    ],
)  # fmt: skip
def test_what_it_does_train_with_is_not(mapping: dict[str, Any], gpu: bool) -> None:
    assert problems(mapping, gpu) == []


def test_a_scheduler_that_is_not_ours_is_told_once() -> None:
    mapping = {"scheduler": {"type": "OneCycle", "params": {"total_num_steps": 7}}}
    config, _ = files.inlined(Config.model_validate({"strategy": {"kind": "deepspeed", "config": mapping}}))
    assert files.problems(config, gpu=False) == [
        "strategy.config: scheduler.type is 'OneCycle'; expected WarmupLR, WarmupDecayLR, WarmupCosineLR"
    ]
    with pytest.raises(UserError) as caught:
        zero_config.check_schedule(config, 9)
    (problem,) = caught.value.problems
    assert "total_num_steps is 7" in problem


def accelerate(folder: Path, text: str, **training: object) -> Config:
    (folder / "a.yaml").write_text(text)
    values = {"strategy": {"accelerate_config": str(folder / "a.yaml")}, "training": training}
    return files.inlined(Config.model_validate(values))[0]


@pytest.mark.parametrize("line", ["", "mixed_precision: null\n"])
def test_an_accelerate_file_without_a_precision_says_nothing_against_ours(tmp_path: Path, line: str) -> None:
    config = accelerate(tmp_path, f"distributed_type: MULTI_GPU\n{line}", mixed_precision="bf16")
    assert config.training.mixed_precision == "bf16"


def test_an_accelerate_file_that_says_no_precision_and_ours_disagree(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"mixed_precision is no, but training\.mixed_precision is bf16"):
        accelerate(tmp_path, "distributed_type: MULTI_GPU\nmixed_precision: 'no'\n", mixed_precision="bf16")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("distributed_type: null\n", "distributed_type is null; expected FSDP"),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: true, fsdp_sharding_strategy: 2}\n",
            "fsdp_sharding_strategy is 2, but fsdp_config.fsdp_reshard_after_forward is true; make them equal",
        ),
    ],
)
def test_an_accelerate_file_that_says_nothing_or_two_things_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        accelerate(tmp_path, text)


def test_an_accelerate_file_and_the_deepspeed_file_that_it_names_are_compared(tmp_path: Path) -> None:
    own = tmp_path / "ds.json"
    text = (
        "distributed_type: DEEPSPEED\n"
        f"deepspeed_config: {{deepspeed_config_file: {own}, gradient_accumulation_steps: 7}}\n"
    )
    own.write_text(json.dumps({"gradient_accumulation_steps": 2}))
    with pytest.raises(UserError, match=r"gradient_accumulation_steps is 7, but .*ds\.json has 2; make them equal"):
        accelerate(tmp_path, text, gradient_accumulation_steps=2)
    own.write_text(json.dumps({"gradient_accumulation_steps": "auto"}))
    config = accelerate(tmp_path, text, gradient_accumulation_steps=2)
    assert "gradient_accumulation_steps is 7" in files.problems(config, gpu=False)[0]


def test_an_empty_path_is_told_as_one() -> None:
    with pytest.raises(UserError) as caught:
        files.inlined(Config.model_validate({"strategy": {"kind": "deepspeed", "config": ""}}))
    assert caught.value.problems == ["strategy.config: is empty; expected the path of a file"]


def small(wrap: object, **more: object) -> Config:
    model = {"config": {"num_hidden_layers": 1}, "from_scratch": True}
    return Config.model_validate({"model": model, "strategy": {"kind": "fsdp", "wrap": wrap, **more}})


def test_what_holds_the_embeddings_is_not_sharded_as_a_whole() -> None:
    auto = small("auto")
    assert fsdp.wrapped(auto, outline(auto.model, auto.storage)) == ["BertLayer"]
    named = small(["BertEmbeddings", "BertLayer"])
    with pytest.raises(UserError, match="BertEmbeddings holds the input embeddings, which are sharded by themselves"):
        preflight._model(named)
    flat = small(["BertEmbeddings"], version=1)
    assert fsdp.wrapped(flat, outline(flat.model, flat.storage)) == ["BertEmbeddings"]
