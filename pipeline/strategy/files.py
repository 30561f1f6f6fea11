"""Files that the strategy names, read on the driver: workers may be elsewhere, and a run keeps what it used."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import document
from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.strategy import zero_config

# Of a file by `accelerate config`: what only `accelerate launch` uses. Ray starts the workers and gives them devices.
LAUNCH = {
    "compute_environment", "debug", "gpu_ids", "machine_rank", "main_process_ip", "main_process_port",
    "main_training_function", "num_machines", "num_processes", "rdzv_backend", "same_network", "use_cpu",
    "enable_cpu_affinity", "mpirun_config", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "tpu_name", "tpu_zone",
    "command_file", "commands", "downcast_bf16", "ipex_config",
}  # fmt: skip
REPLICATED = {"NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_HPU", "MULTI_MLU"}
# Settings of FSDP that have no counterpart: how weights get to the ranks, and orders of messages.
FSDP_UNUSED = {
    "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states", "fsdp_use_orig_params", "fsdp_backward_prefetch",
    "fsdp_backward_prefetch_policy", "fsdp_forward_prefetch", "fsdp_min_num_params",
}  # fmt: skip
DEEPSPEED_UNUSED = {
    "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_moe_layer_cls_names",
}  # fmt: skip
Mapping = dict[str, Any]


def read_mapping(file: str, field: str) -> Mapping:
    """A JSON or YAML file that holds a mapping.

    Raises:
        UserError: it is missing, cannot be read or holds something else.
    """
    path = Path(file).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        missing = isinstance(error, FileNotFoundError)
        raise UserError(f"{field}: {file}: {'no such file' if missing else f'cannot be read: {error}'}") from error
    if text.lstrip().startswith("{") and path.suffix.lower() in (".json", ""):
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{field}: {file}:{error.lineno}: not valid JSON: {error.msg}") from error
    else:
        found = document.read(text)
        if found.problems:
            raise UserError(*(f"{field}: {file}:{line}: {problem}" for line, problem in found.problems))
        value = found.data
    if not isinstance(value, dict):
        raise UserError(f"{field}: {file} holds no mapping of settings")
    return value


def inlined(config: Config) -> tuple[Config, list[str]]:
    """The configuration with the contents of the strategy's files in it, and what the user should know of them.

    Raises:
        UserError: a file is wrong, or disagrees with the configuration.
    """
    notes: list[str] = []
    if config.strategy.accelerate_config is not None:
        config, notes = _accelerate(config, config.strategy.accelerate_config)
    strategy = config.strategy
    if strategy.kind != "deepspeed":
        return config, notes
    mapping = strategy.config
    if isinstance(mapping, str):
        mapping = read_mapping(mapping, "strategy.config")
    malformed = zero_config.malformed(mapping or {})
    if malformed:
        raise UserError(*malformed)
    zero = (mapping or {}).get("zero_optimization", {})
    precision = zero_config.precision(mapping or {})
    training = config.training
    if precision in ("fp16", "bf16") and training.mixed_precision == "no":
        # The default says nothing against what the file asks for.
        training = training.model_copy(update={"mixed_precision": precision})
        notes.append(f"mixed precision {precision} from strategy.config")
    update: Mapping = {"config": mapping}
    problems = []
    stage = zero.get("stage", "auto")
    if stage not in ("auto", 0, 1, 2, 3):
        problems.append(f"strategy.config: zero_optimization.stage is {stage!r}; expected 0, 1, 2 or 3")
    if strategy.zero_stage is None:
        update["zero_stage"] = 2 if stage == "auto" else stage
    for key, name in (("offload_optimizer", "offload_optimizer"), ("offload_param", "offload_parameters")):
        device = zero.get(key, {}).get("device", "auto")
        if device not in ("auto", "none", "cpu"):
            problems.append(f"strategy.config: zero_optimization.{key}.device is {device!r}; expected none or cpu")
        if getattr(strategy, name) is None:
            update[name] = "none" if device == "auto" else device
    if problems:
        raise UserError(*problems)
    changed = _validated(config, strategy=strategy.model_dump() | update, training=training.model_dump())
    return changed, notes


def _validated(config: Config, **sections: Mapping) -> Config:
    from pydantic import ValidationError

    try:
        return Config.model_validate(config.model_dump() | sections)
    except ValidationError as error:
        words = [f"{'.'.join(map(str, item['loc'])) or 'strategy'}: {item['msg']}" for item in error.errors()]
        raise UserError(*words) from error


def _accelerate(config: Config, file: str) -> tuple[Config, list[str]]:
    values = read_mapping(file, "strategy.accelerate_config")
    kind = str(values.pop("distributed_type", "NO")).upper()
    problems: list[str] = []
    strategy: Mapping = {"accelerate_config": None}
    training = config.training.model_dump()
    ignored = [key for key in values if key in LAUNCH]
    precision = str(values.pop("mixed_precision", None) or "no").lower()
    if precision not in ("no", "fp16", "bf16"):
        problems.append(f"{file}: mixed_precision is {precision!r}; expected no, bf16 or fp16")
    elif training["mixed_precision"] not in ("no", precision):
        problems.append(
            f"{file}: mixed_precision is {precision}, but training.mixed_precision is {training['mixed_precision']}"
        )
    else:
        training["mixed_precision"] = precision
    fsdp, deepspeed = values.pop("fsdp_config", None) or {}, values.pop("deepspeed_config", None) or {}
    if kind == "FSDP":
        strategy |= _fsdp(fsdp, file, problems, ignored)
    elif kind == "DEEPSPEED":
        strategy |= _deepspeed(deepspeed, file, problems, ignored)
    elif kind not in REPLICATED:
        problems.append(
            f"{file}: distributed_type is {kind}; expected FSDP, DEEPSPEED or one of {', '.join(sorted(REPLICATED))}"
        )
    for key, value in values.items():
        if key not in LAUNCH and value not in (None, {}, "no", "NO", False):
            problems.append(f"{file}: {key} is not supported here; remove it")
    if problems:
        raise UserError(*(f"strategy.accelerate_config: {problem}" for problem in problems))
    words = [f"{file}: not used, as only accelerate launch needs it: {', '.join(sorted(ignored))}"] if ignored else []
    changed = _validated(config, strategy=config.strategy.model_dump() | strategy, training=training)
    return changed, words


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("true", "1", "yes")


def _fsdp(values: Mapping, file: str, problems: list[str], ignored: list[str]) -> Mapping:
    version = int(values.get("fsdp_version") or 1)
    result: Mapping = {"kind": "fsdp", "version": version}
    readers: dict[str, Callable[[Any], Mapping]] = {
        "fsdp_version": lambda _: {},
        "fsdp_offload_params": lambda value: {"cpu_offload": _flag(value)},
        "fsdp_activation_checkpointing": lambda value: {"activation_checkpointing": _flag(value)},
        "fsdp_transformer_layer_cls_to_wrap": lambda value: {
            "wrap": [name.strip() for name in str(value).split(",") if name.strip()] or "auto"
        },
    }
    choices: dict[str, dict[str, Mapping]] = {
        "fsdp_state_dict_type": {
            "SHARDED_STATE_DICT": {"state_dict": "sharded"},
            "FULL_STATE_DICT": {"state_dict": "full"},
        },
        "fsdp_auto_wrap_policy": {"TRANSFORMER_BASED_WRAP": {}},
        "fsdp_sharding_strategy": {
            "FULL_SHARD": {"reshard_after_forward": True},
            "SHARD_GRAD_OP": {"reshard_after_forward": False},
        },
        "fsdp_reshard_after_forward": {
            "TRUE": {"reshard_after_forward": True},
            "FALSE": {"reshard_after_forward": False},
            "FULL_SHARD": {"reshard_after_forward": True},
            "SHARD_GRAD_OP": {"reshard_after_forward": False},
        },
    }
    for key, value in values.items():
        if key in FSDP_UNUSED:
            ignored.append(f"fsdp_config.{key}")
        elif key in readers:
            result |= readers[key](value)
        elif key in choices:
            word = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP"}.get(str(value), str(value).upper())
            if word in choices[key]:
                result |= choices[key][word]
            else:
                problems.append(f"{file}: fsdp_config.{key} is {value!r}; expected {' or '.join(choices[key])}")
        else:
            problems.append(f"{file}: fsdp_config.{key} is not supported here; remove it")
    return result


def _deepspeed(values: Mapping, file: str, problems: list[str], ignored: list[str]) -> Mapping:
    result: Mapping = {"kind": "deepspeed"}
    own = values.pop("deepspeed_config_file", None)
    mapping = read_mapping(str(own), f"strategy.accelerate_config: {file}: deepspeed_config_file") if own else {}
    for key, value in values.items():
        if key in DEEPSPEED_UNUSED:
            ignored.append(f"deepspeed_config.{key}")
        elif key == "zero_stage":
            result["zero_stage"] = value
        elif key == "offload_optimizer_device":
            result["offload_optimizer"] = value
        elif key == "offload_param_device":
            result["offload_parameters"] = value
        elif key in ("gradient_accumulation_steps", "gradient_clipping"):
            mapping.setdefault(key, value)
        else:
            problems.append(f"{file}: deepspeed_config.{key} is not supported here; remove it")
    return result | {"config": mapping or None}


def describe(config: Config) -> str:
    """The strategy in words, for the table of checks."""
    strategy = config.strategy
    if strategy.kind == "fsdp":
        offload = ", on the CPU" if strategy.cpu_offload else ""
        return f"fsdp {strategy.version}, {strategy.state_dict} checkpoints{offload}"
    if strategy.kind == "deepspeed":
        return (
            f"deepspeed, ZeRO stage {strategy.zero_stage}, optimizer offload {strategy.offload_optimizer}, parameter "
            f"offload {strategy.offload_parameters}"
        )
    return strategy.kind


def problems(config: Config, gpu: bool) -> list[str]:
    """What of the strategy cannot be done here, a line each.

    Args:
        config: with files read into it; while they are not, nothing is said of DeepSpeed's own configuration.
        gpu: whether the workers have GPUs.
    """
    strategy = config.strategy
    found = []
    if strategy.kind == "fsdp" and strategy.version == 1:
        if not gpu:
            found.append("strategy.version: 1 needs GPUs, and this job runs on CPUs; expected 2")
        if strategy.state_dict == "sharded":
            found.append("strategy.state_dict: version 1 writes full ones only; expected full, or version 2")
    if strategy.kind == "deepspeed":
        if not config.training.stop_on_bad_loss:
            found.append(
                "training.stop_on_bad_loss: false cannot leave out a step of deepspeed, which takes it before the norm "
                "of its gradients is known; expected true"
            )
        if importlib.util.find_spec("deepspeed") is None:
            found.append(
                "strategy.kind: deepspeed is not installed here; install this package with its extra, "
                "pip install 'pipeline[deepspeed]', or take an image that has it (docs/images.md)"
            )
        if not isinstance(strategy.config, str) and strategy.zero_stage is not None:
            try:
                zero_config.resolve(config, gpu)
            except UserError as error:
                found += error.problems
    return found


def notes(config: Config, gpu: bool) -> list[str]:
    """What the user should know of a strategy without problems, on workers with or without GPUs."""
    return zero_config.resolve(config, gpu)[1] if config.strategy.kind == "deepspeed" else []
