"""DeepSpeed's configuration: what the user gave, completed from ours, and refused where the two disagree.

`"auto"` and what is left out are filled. DeepSpeed's own gradient accumulation is set to 1 in the end: the loop weighs
the loss over the whole global batch itself and says which micro-batch is the last, since dividing by a fixed number is
wrong for the short last accumulation of an epoch.
"""

import copy
import importlib.util
import math
from dataclasses import dataclass, field
from typing import Any

from pipeline.config import Config
from pipeline.data.engine import train_shape
from pipeline.errors import UserError
from pipeline.redaction import shown

# Ours, whose numbers an `optimizer` section may set.
BETAS, EPS = (0.9, 0.999), 1e-8
SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
# Filled from the model's hidden size when it is there.
BY_MODEL = {
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
}
Mapping = dict[str, Any]


@dataclass
class _Filling:
    """A DeepSpeed configuration while it is being completed."""

    values: Mapping
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def get(self, path: str) -> Any:
        """The value at a dotted path, None if there is none."""
        node: Any = self.values
        for key in path.split("."):
            node = node.get(key) if isinstance(node, dict) else None
        return node

    def put(self, path: str, value: Any) -> None:
        """Set the value at a dotted path."""
        *parents, last = path.split(".")
        node = self.values
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value

    def match(self, path: str, value: Any, ours: str) -> None:
        """Fill a setting that is absent or `auto`; note where it is neither nor the same."""
        given = self.get(path)
        if given is None or given == "auto":
            self.put(path, value)
        elif not _same(given, value):
            self.problems.append(
                f'strategy.config: {path} is {given!r}, but {ours} is {value!r}; make them equal or write "auto"'
            )


def _same(given: Any, value: Any) -> bool:
    if isinstance(given, bool | int | float) and isinstance(value, int | float):
        return math.isclose(float(given), float(value), rel_tol=1e-9)
    if isinstance(given, list | tuple) and isinstance(value, list | tuple):
        return len(given) == len(value) and all(map(_same, given, value))
    return bool(given == value)


def precision(mapping: Mapping) -> str | None:
    """The precision that a DeepSpeed configuration asks for, None if it leaves it open.

    Raises:
        UserError: it asks for two.
    """
    enabled = {kind: (mapping.get(kind) or {}).get("enabled") for kind in ("fp16", "bf16")}
    wanted = [kind for kind, value in enabled.items() if value is True]
    if len(wanted) > 1:
        raise UserError("strategy.config: fp16.enabled and bf16.enabled are both true; expected at most one")
    if wanted:
        return wanted[0]
    return "no" if all(value is False for value in enabled.values()) else None


def moments(config: Config) -> dict[str, Any]:
    """`betas` and `eps` of AdamW: those of an `optimizer` section, else the usual ones."""
    mapping = config.strategy.config if config.strategy.kind == "deepspeed" else None
    section = mapping.get("optimizer") if isinstance(mapping, dict) else None
    found = (section or {}).get("params") or {}
    given = {key: value for key, value in found.items() if key in ("betas", "eps") and value not in (None, "auto")}
    betas = given.get("betas", BETAS)
    return {"betas": (float(betas[0]), float(betas[1])), "eps": float(given.get("eps", EPS))}


def resolve(config: Config, gpu: bool) -> tuple[Mapping, list[str]]:
    """The configuration that DeepSpeed is given, and what the user should know of it.

    Args:
        config: with files read into it (`pipeline/strategy/files.py`).
        gpu: whether the workers have GPUs.

    Raises:
        UserError: the two configurations disagree; all differences, with both values.
    """
    given = config.strategy.config
    assert not isinstance(given, str), "files have been read before"
    filling = _Filling(copy.deepcopy(given or {}))
    _zero(filling, config)
    _precision(filling, config, gpu)
    _batches(filling, config)
    _optimizer(filling, config)
    _scheduler(filling, config)
    # Moments in the CPU's memory are stepped by PyTorch's fused AdamW. DeepSpeed's own, which GPU jobs can ask for, has
    # to be compiled on the machine that it runs on.
    own = filling.values.get("zero_force_ds_cpu_optimizer") is True
    filling.values["zero_force_ds_cpu_optimizer"] = gpu and own
    _needs(filling, config, gpu and own)
    filling.problems += [
        f"strategy.config: {path} is 'auto', which nothing here fills; expected a value"
        for path in _autos(filling.values)
        if path not in BY_MODEL
    ]
    if filling.problems:
        raise UserError(*filling.problems)
    return filling.values, filling.notes


def _zero(filling: _Filling, config: Config) -> None:
    strategy = config.strategy
    assert strategy.zero_stage is not None, "it has been read from the configuration before"
    filling.match("zero_optimization.stage", strategy.zero_stage, "strategy.zero_stage")
    for key, ours, name in (
        ("offload_optimizer", strategy.offload_optimizer, "strategy.offload_optimizer"),
        ("offload_param", strategy.offload_parameters, "strategy.offload_parameters"),
    ):
        path = f"zero_optimization.{key}.device"
        if ours is not None or filling.get(path) == "auto":
            filling.match(path, ours or "none", name)


def _precision(filling: _Filling, config: Config, gpu: bool) -> None:
    wanted = config.training.mixed_precision
    said = precision(filling.values)
    if said is not None and said != wanted:
        filling.problems.append(
            f"strategy.config: its precision is {said}, but training.mixed_precision is {wanted}; make them equal"
        )
    if wanted == "fp16" and not gpu:
        filling.notes.append("bf16 in place of fp16, which CPUs cannot train with")
        wanted = "bf16"
    if wanted != "no" and filling.get("zero_optimization.stage") == 0:
        filling.problems.append(
            f"strategy.zero_stage: 0 trains in float32, training.mixed_precision is {wanted}; take 1"
        )
    for kind in ("fp16", "bf16"):
        section = filling.values.get(kind)
        filling.values[kind] = {**(section if isinstance(section, dict) else {}), "enabled": kind == wanted}


def _needs(filling: _Filling, config: Config, own: bool) -> None:
    """What DeepSpeed would refuse on the workers only: settings that need others, or a package; `own`: its AdamW."""

    def expect(path: str, words: str) -> None:
        filling.problems.append(f"strategy.config: {path} is {shown(filling.get(path))}; expected {words}")

    stage, offloads = config.strategy.zero_stage, config.strategy.offload_optimizer == "cpu"
    forced = "optimizer.device: cpu and, on GPUs, zero_force_ds_cpu_optimizer: true"
    ratio = "zero_optimization.offload_optimizer.ratio"
    if filling.get(ratio) not in (None, "auto", 1) and not (stage == 3 and offloads and own):
        expect(ratio, f"1, or stage 3 with offload_{forced}")
    whole = filling.get("bf16.bf16_optimizer_states") is True
    for path in ("bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads"):
        if filling.get(path) is True and not (stage == 2 and offloads and own) and not (whole and path[0] == "b"):
            expect(path, f"false, or stage 2 with offload_{forced}")
    if whole and filling.get("bf16.bf16_master_weights_and_grads") is not True:
        expect("bf16.bf16_optimizer_states", "false, or bf16_master_weights_and_grads: true beside it")
    scattered = stage in (2, 3) and filling.get("zero_optimization.reduce_scatter") is not False
    if scattered and filling.get("gradient_predivide_factor") not in (None, "auto", 1):
        expect("gradient_predivide_factor", f"1, or zero_optimization.reduce_scatter: false with stage {stage}")
    for package in ("tensorboard", "wandb"):
        if filling.get(f"{package}.enabled") is True and importlib.util.find_spec(package) is None:
            expect(f"{package}.enabled", f"false, as {package} is not installed here")


def _batches(filling: _Filling, config: Config) -> None:
    training, workers = config.training, config.scaling.workers
    shape = train_shape(config, workers)
    micro = f"rows of a micro-batch (training.batch_size_per_worker {training.batch_size_per_worker})"
    filling.match("train_micro_batch_size_per_gpu", shape.micro_rows, micro)
    filling.match("gradient_accumulation_steps", shape.accumulation, "training.gradient_accumulation_steps")
    filling.match("train_batch_size", shape.global_rows, f"the global batch of {workers} workers")
    filling.match("gradient_clipping", training.max_grad_norm or 0.0, "training.max_grad_norm")
    filling.values |= {
        "train_micro_batch_size_per_gpu": shape.micro_rows,
        "gradient_accumulation_steps": 1,
        "train_batch_size": shape.micro_rows * workers,
        "gradient_clipping": float(training.max_grad_norm or 0.0),
    }


def _optimizer(filling: _Filling, config: Config) -> None:
    """AdamW is built by us, with the numbers of the section, so that nothing has to be compiled on GPUs either."""
    section = filling.values.get("optimizer")
    if section is None:
        return
    kind = section.get("type")
    if str(kind).lower() not in ("adam", "adamw"):
        filling.problems.append(
            f"strategy.config: optimizer.type is {shown(kind)}; expected AdamW, which is what trains here"
        )
    if section.get("params", {}).get("adam_w_mode") is False:
        filling.problems.append(
            "strategy.config: optimizer.params.adam_w_mode is false; expected true: AdamW trains here"
        )
    filling.match("optimizer.params.lr", config.training.learning_rate, "training.learning_rate")
    filling.match("optimizer.params.weight_decay", config.training.weight_decay, "training.weight_decay")
    found = moments(config)
    filling.notes.append(f"its optimizer section: AdamW, betas {list(found['betas'])}, eps {found['eps']:g}")
    del filling.values["optimizer"]


def check_schedule(config: Config, steps: int) -> None:
    """Compare a `scheduler` section with a run of so many optimizer steps.

    Raises:
        UserError: they disagree; all differences, with both values.
    """
    filling = _Filling(copy.deepcopy(config.strategy.config) if isinstance(config.strategy.config, dict) else {})
    # What does not depend on the number of steps, `resolve` tells.
    ratio = config.training.warmup_ratio
    filling.match(
        "scheduler.params.warmup_num_steps", int(steps * ratio), f"training.warmup_ratio {ratio:g} of {steps} steps"
    )
    if filling.get("scheduler.params.total_num_steps") is not None:
        filling.match("scheduler.params.total_num_steps", steps, "the number of steps of the run")
    if filling.problems:
        raise UserError(*filling.problems)


def _scheduler(filling: _Filling, config: Config) -> None:
    """The schedule is ours: DeepSpeed's starts with a rate of 0, and its length is not known before the data are."""
    section = filling.values.get("scheduler")
    if section is None:
        return
    training = config.training
    kind = SCHEDULERS.get(str(section.get("type")))
    if kind is None:
        filling.problems.append(
            f"strategy.config: scheduler.type is {shown(section.get('type'))}; expected {', '.join(SCHEDULERS)}"
        )
    elif kind != training.lr_scheduler:
        filling.problems.append(
            f"strategy.config: scheduler.type is {section['type']!r}, which is {kind}, but training.lr_scheduler is "
            f"{training.lr_scheduler}; make them equal"
        )
    filling.match("scheduler.params.warmup_max_lr", training.learning_rate, "training.learning_rate")
    filling.match("scheduler.params.warmup_min_lr", 0.0, "the rate that our warm-up rises from")
    filling.notes.append(f"its scheduler section: ours, {training.lr_scheduler}, no step with a rate of 0")
    del filling.values["scheduler"]


def _autos(node: Any, path: str = "") -> list[str]:
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in _autos(value, f"{path}.{key}" if path else str(key))]
    return [path] if node == "auto" else []
