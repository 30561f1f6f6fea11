"""What `strategy` says, from our settings, DeepSpeed's own and a file of `accelerate config`, or a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.settings import load
from pipeline.strategy import files, zero_config

REPOSITORY = Path(__file__).parents[2]

# As published for Ray Train with Accelerate: DeepSpeed with CPU offload, and ZeRO-2 with an optimizer of its own.
PUBLISHED_ZERO_3 = {
    "fp16": {"enabled": True},
    "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": False}, "overlap_comm": True,
        "contiguous_gradients": True, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto", "gather_16bit_weights_on_model_save": True,
        "round_robin_gradients": True,
    },
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 10,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False,
}  # fmt: skip
PUBLISHED_ZERO_2 = {
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.98], "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
    "fp16": {"enabled": False}, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}},
    "gradient_accumulation_steps": 1, "gradient_clipping": True, "steps_per_print": 10,
    "train_micro_batch_size_per_gpu": 16, "wall_clock_breakdown": False,
}  # fmt: skip


def job(mapping: dict[str, Any] | str | None = None, **sections: dict[str, Any]) -> Config:
    """A configuration with DeepSpeed's in it, files and precision taken over."""
    values = {"strategy": {"kind": "deepspeed", "config": mapping}, **sections}
    config, _ = files.inlined(Config.model_validate(values))
    return config


def refused(mapping: dict[str, Any], gpu: bool = True, **sections: dict[str, Any]) -> str:
    def resolved() -> None:
        zero_config.resolve(job(mapping, **sections), gpu)

    with pytest.raises(UserError) as caught:
        resolved()
    return "\n".join(caught.value.problems)


def test_every_auto_of_the_published_dictionary_is_filled_from_ours() -> None:
    training = {"batch_size_per_worker": 4, "gradient_accumulation_steps": 3, "max_grad_norm": 0.7}
    config = job(PUBLISHED_ZERO_3, training=training, scaling={"workers": 2})
    assert (config.strategy.zero_stage, config.strategy.offload_optimizer) == (3, "cpu")
    assert (config.strategy.offload_parameters, config.training.mixed_precision) == ("none", "fp16")
    found, notes = zero_config.resolve(config, gpu=True)
    assert found["gradient_clipping"] == 0.7
    assert (found["train_micro_batch_size_per_gpu"], found["train_batch_size"]) == (4, 8)
    # The loop says which micro-batch is the last: DeepSpeed must not divide by a fixed number.
    assert found["gradient_accumulation_steps"] == 1
    assert (found["fp16"]["enabled"], found["bf16"]["enabled"], notes) == (True, False, [])
    # Nothing has to be compiled unless the configuration asks for it.
    assert found["zero_force_ds_cpu_optimizer"] is False
    forced, _ = zero_config.resolve(job(PUBLISHED_ZERO_3 | {"zero_force_ds_cpu_optimizer": True}), gpu=True)
    assert forced["zero_force_ds_cpu_optimizer"] is True
    # These follow from the model, which Accelerate looks at.
    assert set(zero_config._autos(found)) == zero_config.BY_MODEL


def test_bf16_stands_in_for_fp16_on_cpus_and_that_is_said() -> None:
    found, notes = zero_config.resolve(job(PUBLISHED_ZERO_3), gpu=False)
    assert (found["fp16"]["enabled"], found["bf16"]["enabled"]) == (False, True)
    assert any("bf16 in place of fp16" in note for note in notes)
    assert found["zero_force_ds_cpu_optimizer"] is False


def test_numbers_of_an_optimizer_section_are_those_of_adamw() -> None:
    training = {"learning_rate": 2e-5, "batch_size_per_worker": 16, "lr_scheduler": "constant"}
    config = job(PUBLISHED_ZERO_2, training=training)
    found, notes = zero_config.resolve(config, gpu=False)
    assert zero_config.moments(config) == {"betas": (0.9, 0.98), "eps": 1e-8}
    assert not {"optimizer", "scheduler"} & found.keys()
    assert (found["bf16"]["enabled"], found["zero_optimization"]["stage"]) == (True, 2)
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("change", "training", "words"),
    [
        ({"train_micro_batch_size_per_gpu": 7}, {}, ["train_micro_batch_size_per_gpu is 7", "is 16"]),
        ({"train_batch_size": 99}, {}, ["train_batch_size is 99", "is 32"]),
        ({"gradient_accumulation_steps": 4}, {}, ["gradient_accumulation_steps is 4", "is 1"]),
        ({"gradient_clipping": 0.3}, {}, ["gradient_clipping is 0.3", "max_grad_norm is 1.0"]),
        ({}, {"learning_rate": 1e-4}, ["optimizer.params.lr is 2e-05", "learning_rate is 0.0001"]),
        ({}, {"lr_scheduler": "cosine"}, ["'WarmupLR', which is constant", "lr_scheduler is cosine"]),
        ({}, {"mixed_precision": "fp16"}, ["precision is bf16", "mixed_precision is fp16"]),
        ({"optimizer": {"type": "Lamb", "params": {}}}, {}, ["'Lamb'", "expected AdamW"]),
        ({"zero_optimization": {"stage": 2, "sub_group_size": "auto"}}, {}, ["sub_group_size is 'auto'", "fills"]),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, {}, ["'nvme'", "none"]),
        ({"zero_optimization": {"stage": 4}}, {}, ["stage is 4", "expected 0, 1, 2 or 3"]),
        ({"zero_optimization": 2}, {}, ["zero_optimization is 2", "expected a mapping"]),
        ({"zero_optimization": {"stage": 2, "offload_param": "cpu"}}, {}, ["offload_param is 'cpu'", "a mapping"]),
        ({"optimizer": {"type": "AdamW", "params": None}}, {}, ["optimizer.params is null", "a mapping"]),
        ({"optimizer": {"type": "AdamW", "params": {"betas": 0.9}}}, {}, ["betas is 0.9", "two numbers"]),
        ({"scheduler": []}, {}, ["scheduler is []", "a mapping"]),
        ({"optimizer": {"type": "Adam", "params": {"amsgrad": True}}}, {}, ["params.amsgrad has no counterpart"]),
    ],
)  # fmt: skip
def test_a_disagreement_is_refused_with_both_values(
    change: dict[str, Any], training: dict[str, Any], words: list[str]
) -> None:
    ours = {"learning_rate": 2e-5, "batch_size_per_worker": 16, "lr_scheduler": "constant", **training}
    found = refused(PUBLISHED_ZERO_2 | change, training=ours)
    assert all(word in found for word in words), found


def test_warm_up_and_length_of_a_scheduler_section_are_compared_with_the_run() -> None:
    training = {"learning_rate": 2e-5, "batch_size_per_worker": 16, "lr_scheduler": "constant"}
    config = job(PUBLISHED_ZERO_2, training=training)
    with pytest.raises(UserError, match=r"warmup_num_steps is 100, but .* 0\.1 of 500 steps is 50"):
        zero_config.check_schedule(config, 500)
    zero_config.check_schedule(config, 1000)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({"kind": "ddp", "zero_stage": 2}, "zero_stage: found 2, but it is a setting of kind deepspeed"),
        ({"kind": "deepspeed", "cpu_offload": True}, "cpu_offload: found True, but it is a setting of kind fsdp"),
        ({"kind": "deepspeed", "zero_stage": 2, "offload_parameters": "cpu"}, "needs zero_stage 3, found 2"),
        ({"kind": "fsdp", "accelerate_config": "x.yaml"}, "whose file says the kind"),
        ({"kind": "fsdp", "wrap": []}, "strategy.wrap: found []"),
        ({"wrap": ["A"], "accelerate_config": "x.yaml"}, "found ['A'] beside accelerate_config, whose file says it"),
    ],
)
def test_settings_of_another_strategy_are_refused(strategy: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="strategy") as caught:
        Config.model_validate({"strategy": strategy})
    assert words in str(caught.value)


def test_fsdp_1_is_for_gpus_and_full_state_dicts() -> None:
    config = Config.model_validate({"strategy": {"kind": "fsdp", "version": 1}})
    found = files.problems(config, gpu=False)
    assert [problem.split(":")[0] for problem in found] == ["strategy.version", "strategy.state_dict"]
    full = Config.model_validate({"strategy": {"kind": "fsdp", "version": 1, "state_dict": "full"}})
    assert files.problems(full, gpu=True) == []


def test_deepspeed_cannot_leave_out_a_bad_step_and_the_others_can() -> None:
    values: dict[str, Any] = {"training": {"stop_on_bad_loss": False}, "strategy": {"kind": "deepspeed"}}
    (problem,) = files.problems(Config.model_validate(values), gpu=True)
    assert problem.startswith("training.stop_on_bad_loss: false cannot leave out a step of deepspeed")
    for kind in ("ddp", "fsdp"):
        assert files.problems(Config.model_validate({**values, "strategy": {"kind": kind}}), gpu=True) == []


def test_a_file_of_deepspeed_is_kept_in_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(PUBLISHED_ZERO_3, indent="\t"))
    config = job(str(file))
    assert config.strategy.config == PUBLISHED_ZERO_3
    yaml = tmp_path / "ds.yaml"
    yaml.write_text("zero_optimization: {stage: 1}\nbf16: {enabled: true}\n")
    config = job(str(yaml))
    assert (config.strategy.zero_stage, config.training.mixed_precision) == (1, "bf16")
    with pytest.raises(UserError, match="no such file"):
        job(str(tmp_path / "missing.json"))


def accelerate(folder: Path, text: str, **sections: dict[str, Any]) -> tuple[Config, list[str]]:
    file = folder / "accelerate.yaml"
    file.write_text(text)
    return files.inlined(Config.model_validate({"strategy": {"accelerate_config": str(file)}, **sections}))


# As `accelerate config` of 1.15 writes them.
FSDP_FILE = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: false
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: BertLayer,BertPooler
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
DEEPSPEED_FILE = """\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  gradient_accumulation_steps: 1
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
"""


def test_fsdp_settings_of_an_accelerate_file_are_taken_over_and_the_launchers_named(tmp_path: Path) -> None:
    config, notes = accelerate(tmp_path, FSDP_FILE)
    strategy = config.strategy
    assert (strategy.kind, strategy.version, strategy.state_dict) == ("fsdp", 2, "full")
    assert (strategy.reshard_after_forward, strategy.activation_checkpointing) == (False, True)
    assert strategy.wrap == ["BertLayer", "BertPooler"]
    assert (config.training.mixed_precision, strategy.accelerate_config) == ("bf16", None)
    assert all(word in notes[0] for word in ("not used", "num_processes", "fsdp_cpu_ram_efficient_loading"))


def test_deepspeed_settings_of_an_accelerate_file_are_taken_over(tmp_path: Path) -> None:
    config, notes = accelerate(tmp_path, DEEPSPEED_FILE)
    strategy = config.strategy
    assert (strategy.kind, strategy.zero_stage) == ("deepspeed", 3)
    assert (strategy.offload_optimizer, strategy.offload_parameters) == ("cpu", "none")
    found, _ = zero_config.resolve(config, gpu=True)
    assert (found["bf16"]["enabled"], found["gradient_clipping"]) == (True, 1.0)
    assert "zero3_init_flag" in notes[0]
    with pytest.raises(UserError, match=r"gradient_clipping is 1\.0, but training\.max_grad_norm is 0\.5"):
        zero_config.resolve(accelerate(tmp_path, DEEPSPEED_FILE, training={"max_grad_norm": 0.5})[0], gpu=True)


def test_an_accelerate_file_that_names_a_deepspeed_file_brings_its_contents(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(PUBLISHED_ZERO_3 | {"bf16": {"enabled": False}}))
    text = f"deepspeed_config: {{deepspeed_config_file: {tmp_path}/ds.json, zero3_init_flag: true}}\n"
    config, _ = accelerate(tmp_path, f"distributed_type: DEEPSPEED\n{text}")
    assert (config.strategy.zero_stage, config.training.mixed_precision) == (3, "fp16")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("distributed_type: MEGATRON_LM\n", "'MEGATRON_LM'; expected FSDP, DEEPSPEED"),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n", "HYBRID_SHARD"),
        ("distributed_type: MULTI_GPU\nmixed_precision: fp8\n", "fp8"),
        ("distributed_type: MULTI_GPU\nmixed_precision: fp16\n", "training.mixed_precision is bf16"),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_new_thing: 1}\n", "fsdp_new_thing"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        accelerate(tmp_path, text, training={"mixed_precision": "bf16"})
    assert words in str(caught.value)


def test_shipped_strategies_are_what_their_names_say() -> None:
    fsdp, _ = files.inlined(load(str(REPOSITORY / "configs/fsdp.yaml"), [], {}))
    assert (fsdp.strategy.kind, fsdp.strategy.version, fsdp.training.mixed_precision) == ("fsdp", 2, "bf16")
    zero, _ = files.inlined(load(str(REPOSITORY / "configs/deepspeed-zero3.yaml"), [], {}))
    found, _ = zero_config.resolve(zero, gpu=True)
    assert found["zero_optimization"]["stage"] == 3
    assert found["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert found["bf16"]["enabled"] is True


def test_another_strategy_under_the_same_name_is_refused_and_export_is_named() -> None:
    from pipeline.data.inspect import Facts
    from pipeline.run import differences

    facts = Facts({}, {"train": 10}, {}, [], {}, "string")
    before = Config().model_dump(mode="json")
    found = differences(before, facts, Config.model_validate({"strategy": {"kind": "fsdp"}}), facts)
    assert 'strategy.kind: the run has "ddp", the configuration "fsdp"' in found
    assert "pipeline runs export RUN DIR" in found[-1]
