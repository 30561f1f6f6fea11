"""A file that `accelerate config` wrote: what of it is taken over, what only its launcher uses, what is refused."""

from typing import Any

from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.redaction import shown
from pipeline.strategy.mapping import Mapping, read_mapping, validated

# What only `accelerate launch` uses. Ray starts the workers and gives them devices.
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
# The section that belongs to a distributed type.
OF_KIND = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config"}
TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")


def inlined(config: Config, file: str) -> tuple[Config, list[str]]:
    """The configuration with the file's contents in it, and what the user should know of them.

    Raises:
        UserError: the file is wrong, or disagrees with the configuration.
    """
    values = read_mapping(file, "strategy.accelerate_config")
    given = values.pop("distributed_type", "NO")
    kind = str(given).upper()
    problems: list[str] = []
    strategy: Mapping = {"accelerate_config": None}
    training = config.training.model_dump()
    ignored = [key for key in values if key in LAUNCH]
    said = values.pop("mixed_precision", None)
    # A file that says nothing of it, as older versions wrote them, says nothing against ours.
    precision = training["mixed_precision"] if said is None else str(said or "no").lower()
    if precision not in ("no", "fp16", "bf16"):
        problems.append(f"{file}: mixed_precision is {precision!r}; expected no, bf16 or fp16")
    elif training["mixed_precision"] not in ("no", precision):
        problems.append(
            f"{file}: mixed_precision is {precision}, but training.mixed_precision is {training['mixed_precision']}"
        )
    else:
        training["mixed_precision"] = precision
    sections = {name: _section(name, values.pop(name, None), file, problems) for name in OF_KIND.values()}
    if kind == "FSDP":
        strategy |= _fsdp(sections["fsdp_config"], file, problems, ignored)
    elif kind == "DEEPSPEED":
        strategy |= _deepspeed(sections["deepspeed_config"], file, problems, ignored)
    elif kind not in REPLICATED:
        problems.append(
            f"{file}: distributed_type is {shown(given)}; expected FSDP, DEEPSPEED or one of "
            f"{', '.join(sorted(REPLICATED))}"
        )
    for other, name in OF_KIND.items():
        if sections[name] and kind != other:
            problems.append(f"{file}: {name} is for distributed_type {other}, found {kind}; remove it")
    for key, value in values.items():
        if key not in LAUNCH and value not in (None, {}, "no", "NO", False):
            problems.append(f"{file}: {key} is not supported here; remove it")
    if problems:
        raise UserError(*(f"strategy.accelerate_config: {problem}" for problem in problems))
    words = [f"{file}: not used, as only accelerate launch needs it: {', '.join(sorted(ignored))}"] if ignored else []
    place = f"strategy.accelerate_config: {file}: "
    return validated(config, place, strategy=config.strategy.model_dump() | strategy, training=training), words


def _section(name: str, value: Any, file: str, problems: list[str]) -> Mapping:
    if value is not None and not isinstance(value, dict):
        problems.append(f"{file}: {name} is {shown(value)}; expected a mapping")
    return value if isinstance(value, dict) else {}


# A value's words in lower case, and what they are here.
Choice = dict[str, Mapping]


def _flag(name: str) -> Choice:
    return {word: {name: value} for value, words in ((True, TRUE), (False, FALSE)) for word in words}


RESHARD: Choice = {
    "true": {"reshard_after_forward": True},
    "false": {"reshard_after_forward": False},
    "full_shard": {"reshard_after_forward": True},
    "shard_grad_op": {"reshard_after_forward": False},
}
FSDP: dict[str, Choice] = {
    "fsdp_version": {"1": {"version": 1}, "2": {"version": 2}},
    "fsdp_offload_params": _flag("cpu_offload"),
    "fsdp_activation_checkpointing": _flag("activation_checkpointing"),
    "fsdp_state_dict_type": {
        "sharded_state_dict": {"state_dict": "sharded"},
        "full_state_dict": {"state_dict": "full"},
    },
    "fsdp_auto_wrap_policy": {"transformer_based_wrap": {}},
    "fsdp_sharding_strategy": {
        "full_shard": {"reshard_after_forward": True},
        "shard_grad_op": {"reshard_after_forward": False},
        "1": {"reshard_after_forward": True},
        "2": {"reshard_after_forward": False},
    },
    "fsdp_reshard_after_forward": {**RESHARD, "1": RESHARD["full_shard"], "2": RESHARD["shard_grad_op"]},
}
DEEPSPEED: dict[str, Choice] = {
    "zero_stage": {str(stage): {"zero_stage": stage} for stage in range(4)},
    "offload_optimizer_device": {word: {"offload_optimizer": word} for word in ("none", "cpu")},
    "offload_param_device": {word: {"offload_parameters": word} for word in ("none", "cpu")},
}


def _chosen(section: str, key: str, value: Any, choice: Choice, file: str, problems: list[str]) -> Mapping:
    word = str(value).lower()
    if isinstance(value, str | int) and word in choice:
        return choice[word]
    names = [name.upper() if "_" in name else name for name in choice]
    problems.append(f"{file}: {section}.{key} is {shown(value)}; expected {' or '.join(names)}")
    return {}


def _fsdp(values: Mapping, file: str, problems: list[str], ignored: list[str]) -> Mapping:
    result: Mapping = {"kind": "fsdp", "version": 1}
    said: dict[str, str] = {}
    for key, value in values.items():
        if key in FSDP_UNUSED:
            ignored.append(f"fsdp_config.{key}")
        elif key == "fsdp_transformer_layer_cls_to_wrap":
            if value is not None and not isinstance(value, str):
                problems.append(f"{file}: fsdp_config.{key} is {shown(value)}; expected names of classes with commas")
            names = [name.strip() for name in str(value or "").split(",") if name.strip()]
            result |= {"wrap": names or "auto"}
        elif key in FSDP:
            if value is not None or key != "fsdp_version":
                chosen = _chosen("fsdp_config", key, value, FSDP[key], file, problems)
                for name in chosen:
                    # Two names for one thing: fsdp_sharding_strategy and, since version 2, fsdp_reshard_after_forward.
                    if name in said and result[name] != chosen[name]:
                        problems.append(
                            f"{file}: fsdp_config.{key} is {shown(value)}, but fsdp_config.{said[name]} is "
                            f"{shown(values[said[name]])}; make them equal"
                        )
                    said[name] = key
                result |= chosen
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
        elif key in DEEPSPEED:
            result |= _chosen("deepspeed_config", key, value, DEEPSPEED[key], file, problems)
        elif key in ("gradient_accumulation_steps", "gradient_clipping"):
            if mapping.get(key) in (None, "auto"):
                mapping[key] = value
            elif value not in (None, "auto", mapping[key]):
                problems.append(
                    f"{file}: deepspeed_config.{key} is {shown(value)}, but {own} has {shown(mapping[key])}; make them "
                    "equal"
                )
        else:
            problems.append(f"{file}: deepspeed_config.{key} is not supported here; remove it")
    return result | {"config": mapping or None}
