"""What the strategy's files say, taken into the configuration; what of a strategy cannot be done here."""

import importlib.util

from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.redaction import shown
from pipeline.strategy import accelerate_file, zero_config, zero_keys
from pipeline.strategy.mapping import Mapping, read_mapping, validated


def inlined(config: Config) -> tuple[Config, list[str]]:
    """The configuration with the contents of the strategy's files in it, and what the user should know of them.

    Raises:
        UserError: a file is wrong, or disagrees with the configuration.
    """
    notes: list[str] = []
    if config.strategy.accelerate_config is not None:
        config, notes = accelerate_file.inlined(config, config.strategy.accelerate_config)
    strategy = config.strategy
    if strategy.kind != "deepspeed":
        return config, notes
    mapping = strategy.config
    if isinstance(mapping, str):
        mapping = read_mapping(mapping, "strategy.config")
    malformed = zero_keys.problems(mapping or {})
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
    if isinstance(stage, bool) or stage not in ("auto", 0, 1, 2, 3):
        problems.append(f"strategy.config: zero_optimization.stage is {shown(stage)}; expected 0, 1, 2 or 3")
    if strategy.zero_stage is None:
        update["zero_stage"] = 2 if stage == "auto" else stage
    for key, name in (("offload_optimizer", "offload_optimizer"), ("offload_param", "offload_parameters")):
        device = zero.get(key, {}).get("device", "auto")
        if device not in ("auto", "none", "cpu"):
            problems.append(f"strategy.config: zero_optimization.{key}.device is {shown(device)}; expected none or cpu")
        if getattr(strategy, name) is None:
            update[name] = "none" if device == "auto" else device
    if problems:
        raise UserError(*problems)
    changed = validated(config, "", strategy=strategy.model_dump() | update, training=training.model_dump())
    return changed, notes


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
        if _is_read(config):
            try:
                zero_config.resolve(config, gpu)
            except UserError as error:
                found += error.problems
    return found


def notes(config: Config, gpu: bool) -> list[str]:
    """What the user should know of a strategy without problems, on workers with or without GPUs."""
    return zero_config.resolve(config, gpu)[1] if config.strategy.kind == "deepspeed" and _is_read(config) else []


def _is_read(config: Config) -> bool:
    """Whether DeepSpeed's own configuration has been taken in; where it is wrong, that is what the user is told."""
    return not isinstance(config.strategy.config, str) and config.strategy.zero_stage is not None
