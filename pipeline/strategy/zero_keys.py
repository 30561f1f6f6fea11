"""Which settings a DeepSpeed configuration may have here, of what type; `tests/unit/test_zero_keys.py` holds the names
to DeepSpeed's own.

DeepSpeed itself drops what it does not know and leaves sections that a training loop has to serve for the loop to find:
both would be a job that differs from what was asked for, in silence.
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.redaction import shown

LARGEST = 2**63 - 1
AUTO = ' or "auto"'


@dataclass(frozen=True)
class Kind:
    """What a setting takes: a test, in words. `"auto"` is right for all; what nothing fills is refused later."""

    words: str
    right: Callable[[Any], bool]


def _number(value: Any, least: float, most: float) -> bool:
    # A comparison with NaN is false, and an integer of a thousand digits compares without becoming a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(least <= value <= most)


def whole(least: int, most: int = LARGEST) -> Kind:
    """A whole number, also written as 5e8."""
    return Kind(
        f"a whole number of at least {least}", lambda value: _number(value, least, most) and value == int(value)
    )


def number(least: float, most: float = 1e38, words: str = "") -> Kind:
    """A finite number."""
    return Kind(words or f"a number of at least {least:g}", lambda value: _number(value, least, most))


def choice(*names: str) -> Kind:
    """One of some words, in any case."""
    return Kind(" or ".join(names), lambda value: isinstance(value, str) and value.lower() in names)


def only(value: Any, words: str) -> Kind:
    """The one value that there is here, that of DeepSpeed's default."""
    return Kind(words, lambda given: bool(given == value))


def _betas(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_number(beta, 0, 1) and beta < 1 for beta in value)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("text", lambda value: isinstance(value, str))
# DeepSpeed aligns what it gathers to pairs.
EVEN = Kind("an even number of at least 2", lambda value: whole(2).right(value) and value % 2 == 0)
WORDS = Kind("a list of texts", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value))
# Compared with ours, or read, in zero_config.py, which says more.
ELSEWHERE = Kind("a value", lambda _: True)
# accelerate's own template writes true, and DeepSpeed reads it as 1.
CLIPPING = Kind("a number of at least 0", lambda value: isinstance(value, bool) or _number(value, 0, 1e38))
FOREVER = Kind("a whole number of at least 1", lambda value: value == math.inf or whole(1).right(value))
DTYPE = choice("fp32", "fp16", "bf16")
LIKE = Kind("a number", lambda value: _number(value, -1e38, 1e38))

Keys = dict[str, Any]  # a Kind, or the keys of a section
OFFLOAD: Keys = {"device": ELSEWHERE, "nvme_path": TEXT, "buffer_count": whole(0), "pin_memory": FLAG}
STAGE_3: dict[str, Kind] = {
    "prefetch_bucket_size": whole(0), "param_persistence_threshold": whole(0),
    "model_persistence_threshold": whole(0), "max_live_parameters": whole(0), "max_reuse_distance": whole(0),
    "gather_16bit_weights_on_model_save": FLAG,
    # Above 0 DeepSpeed 0.19.8 fails where it counts the parameters of a module.
    "module_granularity_threshold": only(0, "0"),
    "use_all_reduce_for_fetch_params": FLAG, "allgather_sequential": FLAG,
}  # fmt: skip
ZERO: Keys = {
    "stage": ELSEWHERE, "contiguous_gradients": FLAG, "reduce_scatter": FLAG, "reduce_bucket_size": whole(1),
    "use_multi_rank_bucket_allreduce": FLAG, "allgather_partitions": FLAG, "allgather_bucket_size": EVEN,
    # Without the norm it could neither be clipped nor logged.
    "overlap_comm": FLAG, "compute_grad_norm": only(True, "true"), "load_from_fp32_weights": FLAG,
    "elastic_checkpoint": FLAG,
    "offload_param": {**OFFLOAD, "buffer_size": whole(0), "max_in_cpu": whole(0)},
    "offload_optimizer": {
        **OFFLOAD, "pipeline_read": FLAG, "pipeline_write": FLAG, "fast_init": FLAG,
        "ratio": number(0, 1, "a number from 0 to 1"), "cpuadam_cores_perc": number(0, 1, "a number from 0 to 1"),
    },
    "sub_group_size": whole(1), **STAGE_3, **{f"stage3_{name}": kind for name, kind in STAGE_3.items()},
    "stage3_gather_fp16_weights_on_model_save": FLAG, "ignore_unused_parameters": FLAG,
    "round_robin_gradients": FLAG, "parameter_alignment": FLAG, "zero_hpz_partition_size": whole(1),
    "memory_efficient_linear": FLAG, "pipeline_loading_checkpoint": FLAG, "override_module_apply": FLAG,
    "log_trace_cache_warnings": FLAG, "enable_sanity_checks": FLAG, "save_muon_momentum_buffer_in_memory": FLAG,
    "leaf_module": {"classes": WORDS, "names": WORDS, "name_suffixes": WORDS},
}  # fmt: skip
FP16: Keys = {
    "enabled": FLAG, "auto_cast": FLAG, "loss_scale": number(0), "initial_scale_power": whole(0, 127),
    "loss_scale_window": whole(1), "hysteresis": whole(1), "consecutive_hysteresis": FLAG, "min_loss_scale": number(0),
    "fp16_master_weights_and_grads": FLAG,
}  # fmt: skip
BF16: Keys = {
    "enabled": FLAG, "immediate_grad_update": FLAG, "check_grad_overflow": FLAG, "bf16_master_weights_and_grads": FLAG,
    "bf16_optimizer_states": FLAG,
}  # fmt: skip
OPTIMIZER: Keys = {
    "lr": LIKE, "weight_decay": LIKE, "betas": Kind("two numbers from 0 to below 1", _betas), "eps": number(0),
    "torch_adam": FLAG, "adam_w_mode": FLAG,
}  # fmt: skip
SCHEDULER: Keys = {
    "warmup_min_lr": LIKE, "warmup_max_lr": LIKE, "warmup_num_steps": LIKE, "total_num_steps": LIKE,
    "warmup_type": choice("linear"),
}  # fmt: skip
MONITOR: Keys = {"enabled": FLAG, "output_path": TEXT, "job_name": TEXT}
TOP: Keys = {
    "train_batch_size": LIKE, "train_micro_batch_size_per_gpu": LIKE, "gradient_accumulation_steps": LIKE,
    "gradient_clipping": CLIPPING, "steps_per_print": FOREVER, "zero_optimization": ZERO, "fp16": FP16, "bf16": BF16,
    "optimizer": {"type": ELSEWHERE, "params": OPTIMIZER}, "scheduler": {"type": ELSEWHERE, "params": SCHEDULER},
    "zero_allow_untested_optimizer": FLAG, "zero_force_ds_cpu_optimizer": FLAG, "communication_data_type": DTYPE,
    "prescale_gradients": FLAG, "gradient_predivide_factor": number(1e-38, words="a number above 0"),
    "gradient_allreduce_op": choice("mean"), "disable_allgather": FLAG, "disable_python_gc": FLAG,
    "memory_breakdown": FLAG, "wall_clock_breakdown": FLAG, "dump_state": FLAG,
    "log_level": choice("debug", "info", "warning", "error", "critical"),
    "flops_profiler": {
        "enabled": FLAG, "recompute_fwd_factor": number(0), "profile_step": whole(1), "module_depth": whole(-1),
        "top_modules": whole(1), "detailed": FLAG, "output_file": TEXT,
    },
    "comms_logger": {"enabled": FLAG, "prof_all": FLAG, "prof_ops": WORDS, "verbose": FLAG, "debug": FLAG},
    "tensorboard": MONITOR, "csv_monitor": MONITOR,
    "wandb": {"enabled": FLAG, "group": TEXT, "team": TEXT, "project": TEXT},
}  # fmt: skip

# Where null is as good as leaving it out.
MAY_BE_NULL = {
    "steps_per_print",
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "communication_data_type", "zero_optimization.overlap_comm", "zero_optimization.offload_param.nvme_path",
    "zero_optimization.offload_optimizer.nvme_path", "flops_profiler.output_file", "wandb.group", "wandb.team",
    "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.lr", "optimizer.params.weight_decay",
}  # fmt: skip
# DeepSpeed knows them; here they would have no effect, or change what is trained. What would be right instead.
NOT_SERVED = {
    "activation_checkpointing": "set training.activation_checkpointing",
    "amp": "set training.mixed_precision",
    "torch_autocast": "set training.mixed_precision",
    "data_types": "set training.mixed_precision",
    "bfloat16": "write bf16",
    "sparse_gradients": "remove it",
    "seq_parallel_communication_data_type": "remove it",
    "pipeline": "remove it",
    "tensor_parallel": "remove it",
    "expert_parallel": "remove it",
    "use_data_before_expert_parallelism": "remove it",
    "sparse_attention": "remove it",
    "curriculum_learning": "remove it",
    "data_efficiency": "remove it",
    "dataloader_drop_last": "remove it: every row is used",
    "compression_training": "remove it",
    "quantize_training": "remove it",
    "weight_quantization": "remove it",
    "progressive_layer_drop": "remove it",
    "eigenvalue": "remove it",
    "hybrid_engine": "remove it",
    "elasticity": "remove it: training.global_batch_size holds on any number of workers",
    "autotuning": "remove it",
    "managed_gradient_accumulation": "remove it",
    "compile": "remove it",
    "comet": "remove it",
    "checkpoint": "remove it: section checkpoint of the job says when",
    "nebula": "remove it",
    "datastates_ckpt": "remove it",
    "aio": "remove it: nothing is offloaded to disk",
    "timers": "remove it",
    "vocabulary_size": "remove it",
    "zero_optimization.zenflow": "remove it",
    "zero_optimization.legacy_stage1": "remove it",
    # Kernels of CUDA that would have to be compiled, for other numbers than those of DDP.
    "zero_optimization.zero_quantized_weights": "remove it",
    "zero_optimization.zero_quantized_nontrainable_weights": "remove it",
    "zero_optimization.zero_quantized_gradients": "remove it",
    "zero_optimization.mics_shard_size": "remove it",
    "zero_optimization.mics_hierarchical_params_gather": "remove it",
    "zero_optimization.offload_optimizer.super_offload": "remove it",
    "zero_optimization.cpu_offload": "write offload_optimizer: {device: cpu}",
    "zero_optimization.cpu_offload_param": "write offload_param: {device: cpu}",
    "zero_optimization.cpu_offload_use_pin_memory": "write pin_memory in the section of the offload",
    "optimizer.legacy_fusion": "remove it",
}


def problems(mapping: Any, keys: Keys = TOP, path: str = "") -> list[str]:
    """What of a DeepSpeed configuration, or of the section at `path`, is unknown, not served or of a wrong type."""
    found: list[str] = []
    for key, value in mapping.items():
        name = f"{path}{key}"
        kind = keys.get(key)
        if kind is None:
            if not (name in NOT_SERVED and _idle(value) and not NOT_SERVED[name].startswith("write")):
                found.append(f"strategy.config: {_refusal(name, key, keys)}")
        elif isinstance(kind, dict):
            if isinstance(value, dict):
                found += problems(value, kind, f"{name}.")
            else:
                found.append(f"strategy.config: {name} is {shown(value)}; expected a mapping")
        elif value != "auto" and not kind.right(value) and not (value is None and name in MAY_BE_NULL):
            found.append(f"strategy.config: {name} is {shown(value)}; expected {kind.words}{AUTO}")
    return found


def _refusal(name: str, key: Any, keys: Keys) -> str:
    if name in NOT_SERVED:
        return f"{name} has no effect here; {NOT_SERVED[name]}"
    if name.startswith(("optimizer.params.", "scheduler.params.")):
        return f"{name} has no counterpart here; expected {', '.join(sorted(keys))}"
    near = difflib.get_close_matches(str(key).lower(), keys, 1, 0.6)
    right = f"did you mean {name.removesuffix(str(key))}{near[0]}?" if near else f"known there: {', '.join(keys)}"
    return f"{shown(name)[1:-1]} is no setting of DeepSpeed; {right}"


def _idle(value: Any) -> bool:
    """Whether a section is turned off, or says nothing."""
    if isinstance(value, dict):
        return value.get("enabled") is False or all(map(_idle, value.values()))
    return value is None or value is False
