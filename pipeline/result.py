"""What a run has come to: the fields of `result.json`."""

import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("pipeline", "ray", "torch", "accelerate", "transformers", "datasets", "evaluate", "pyarrow")


@dataclass(frozen=True)
class Result:
    """A finished run.

    `epochs` is a fraction if training ended within one. `train_rows` and `eval_rows` are rows of an epoch and of an
    evaluation. `seconds` is the wall time of the start that finished the run, `train_seconds` that of its optimizer
    steps, `data_wait_share` the share of it spent waiting for data. Checkpoints are names of folders within the run's.
    """

    name: str
    status: str
    steps: int
    total_steps: int
    epochs: float
    train_rows: int
    eval_rows: int
    metrics: dict[str, float]
    history: list[dict[str, Any]]
    best_checkpoint: str
    last_checkpoint: str
    attempts: int
    resumed_from_step: int
    world_size: int
    strategy: str
    versions: dict[str, str]
    seconds: float
    train_seconds: float
    data_wait_share: float
    truncated_rows: int
    stopped_early: bool
    final_learning_rate: float
    parameters_sha256: str
    workers: list[dict[str, Any]]
    uri: str = field(default="", compare=False)
    already: bool = field(default=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """For `result.json`, which does not say where it lies: a run's folder may be copied."""
        return {key: value for key, value in asdict(self).items() if key not in ("uri", "already")}

    @classmethod
    def from_json(cls, values: dict[str, Any], uri: str, already: bool = False) -> "Result":
        """Back from `result.json`; fields of a later version are left out."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known}, uri=uri, already=already)


def is_metric(name: str) -> bool:
    """Whether a field of an evaluation is a measured value, not a count or a time."""
    return name.startswith("eval_") and name not in ("eval_rows", "eval_seconds", "eval_tokens")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the numbers depend on."""
    found = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    with suppress(PackageNotFoundError):
        found["deepspeed"] = version("deepspeed")
    return found
