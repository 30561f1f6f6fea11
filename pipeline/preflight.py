"""Everything that can be known to be wrong, found before a worker or a GPU is asked for, and said together."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from pipeline import cluster, records, tracking
from pipeline import run as runs
from pipeline.config import Config, Data
from pipeline.data.engine import train_shape
from pipeline.data.inspect import Facts, inspect
from pipeline.data.survey import survey
from pipeline.errors import PipelineError, UserError
from pipeline.metrics import best_of, check_modules, check_names, names_of
from pipeline.model import ModelFacts, describe, load_tokenizer, outline
from pipeline.probe import Step, probe
from pipeline.storage import open_store
from pipeline.strategy import files
from pipeline.strategy.zero_config import check_schedule

Value = TypeVar("Value")


@dataclass(frozen=True)
class Check:
    """One row of the table that `pipeline check` prints; `details` are what --json shows beside it (docs/data.md)."""

    name: str
    found: str
    passed: bool = True
    details: dict[str, Any] | None = None


@dataclass(frozen=True)
class Prepared:
    """What is known when all checks have passed. `complete`: the run is finished, there is nothing to train."""

    config: Config
    facts: Facts
    model: ModelFacts
    checks: list[Check]
    complete: bool
    seen_result: str | None


class Checks:
    """Runs checks one after the other and keeps what they find wrong, so that all is said at once."""

    def __init__(self) -> None:
        self.rows: list[Check] = []
        self.problems: list[str] = []

    def run(
        self,
        name: str,
        check: Callable[[], tuple[str, Value]],
        details: Callable[[Value], dict[str, Any] | None] = lambda _: None,
    ) -> Value | None:
        """The value of a check, or None if it failed."""
        try:
            words, value = check()
        except PipelineError as error:
            self.problems += error.problems
            self.rows += [Check(name, problem, passed=False) for problem in error.problems]
            return None
        self.rows.append(Check(name, words, details=details(value)))
        return value

    def detail(self, name: str, details: dict[str, Any]) -> None:
        """Put details to the row of a check that has passed."""
        self.rows = [replace(row, details=details) if row.name == name else row for row in self.rows]


def preflight(config: Config, capacity: cluster.Capacity, look: bool = False) -> tuple[Checks, Prepared | None]:
    """All checks of a configuration.

    Args:
        config: with `storage.path` set.
        capacity: what the cluster has.
        look: read the data once more to show lengths and first rows; for `check`.

    Returns:
        The checks, and what they have found out if none has failed.
    """
    checks = Checks()
    # What the strategy's files say belongs to the configuration of all that follows.
    config = checks.run("strategy", lambda: _strategy(config)) or config
    checks.run("metrics", lambda: _metrics(config))
    if config.run.train_func is not None:
        checks.run("train function", lambda: _train_func(config))
    # Storage first: where it does not answer, reading from it would only find that out again, and later.
    stored = checks.run("storage", lambda: _storage(config), lambda steps: {"steps": [asdict(step) for step in steps]})
    reachable = stored is not None
    facts = checks.run("data", lambda: _data(config)) if reachable or not _on_s3(config.data) else None
    model = (
        checks.run("model", lambda: _model(config), asdict) if reachable or "s3://" not in config.model.path else None
    )
    if facts is not None and isinstance(config.strategy.config, dict) and "scheduler" in config.strategy.config:
        checks.run("schedule", lambda: _schedule(config, facts.rows["train"]))
    checks.run("capacity", lambda: _capacity(config, capacity), lambda needs: {**asdict(capacity), **needs})
    if look and facts is not None and model is not None:
        checks.detail("data", survey(config, facts))
    if facts is None or model is None or stored is None:
        return checks, None
    existing = checks.run("run", lambda: _existing(config, facts))
    if checks.problems or existing is None:
        return checks, None
    complete, seen = existing
    return checks, Prepared(config, facts, model, checks.rows, complete, seen)


def _on_s3(data: Data) -> bool:
    return "s3://" in f"{data.train} {data.validation}"


def _train_func(config: Config) -> tuple[str, bool]:
    from pipeline.train_func import resolve

    assert config.run.train_func is not None
    resolve(config.run.train_func)
    module = sys.modules[config.run.train_func.partition(":")[0]]
    return f"{config.run.train_func} in {getattr(module, '__file__', None) or 'Python itself'}", True


def _strategy(config: Config) -> tuple[str, Config]:
    changed, notes = files.inlined(config)
    return "; ".join([files.describe(changed), *notes]), changed


def _schedule(config: Config, rows: int) -> tuple[str, bool]:
    training = config.training
    if config.model.task == "causal-lm" and config.data.packing:
        return "not compared: how many steps packed rows make is known when they are packed", True
    steps = training.epochs * -(-rows // train_shape(config, config.scaling.workers).global_rows)
    steps = min(steps, training.max_steps or steps)
    check_schedule(config, steps)
    return f"{steps} steps, as strategy.config says", True


def _metrics(config: Config) -> tuple[str, bool]:
    if config.run.train_func is not None:
        from pipeline.custom import best

        name, mode = best(config)
        return f"of the train function; best by {mode} {name}", True
    problems = check_names(config.metrics, config.model.task)
    if problems:
        raise UserError(*problems)
    check_modules(names_of(config.metrics, config.model.task), config.model.task)
    name, mode = best_of(config.metrics, config.model.task)
    return f"{', '.join(names_of(config.metrics, config.model.task))}; best by {mode} {name}", True


def _data(config: Config) -> tuple[str, Facts]:
    facts = inspect(config)
    wanted = config.training.class_weights
    if isinstance(wanted, dict):
        unknown = sorted(set(wanted) - set(facts.labels))
        if unknown:
            raise UserError(
                f"training.class_weights: no class {unknown[0]!r} in data.train; its classes: {facts.labels}"
            )
    rows = ", ".join(f"{count:,} {split} rows" for split, count in facts.rows.items())
    return f"{rows}, {len(facts.labels)} labels" if facts.labels else rows, facts


def _model(config: Config) -> tuple[str, ModelFacts]:
    found = describe(config.model, config.storage)
    limit = found.max_tokens
    if limit is not None and config.data.max_length > limit:
        raise UserError(
            f"data.max_length: {config.data.max_length} is more than {config.model.path} takes, {limit} tokens"
        )
    if config.model.task != "causal-lm":
        # With fewer tokens than these the tokenizer cuts nothing.
        tokenizer = load_tokenizer(config.model, config.storage)
        special = tokenizer.num_special_tokens_to_add(config.data.columns.text_pair is not None)
        if config.data.max_length <= special:
            raise UserError(
                f"data.max_length: {config.data.max_length} leaves no token for text beside the {special} special ones "
                f"of {config.model.path}; expected {special + 1} or more"
            )
    if config.model.lora.r is not None:
        from pipeline import lora

        lora.check(config)
    if config.strategy.kind == "fsdp" and config.run.train_func is None:
        from pipeline.strategy.fsdp import wrapped

        wrapped(config, outline(config.model, config.storage))
    return f"{found.architecture}, {found.layers} layers, up to {limit} tokens", found


def _capacity(config: Config, capacity: cluster.Capacity) -> tuple[str, dict[str, Any]]:
    use_gpu = cluster.uses_gpu(config, capacity)
    problems = cluster.problems(config, capacity) + files.problems(config, use_gpu)
    if problems:
        raise UserError(*problems)
    each = cluster.per_worker(config, use_gpu)
    words = ", ".join(f"{amount:g} {name}" for name, amount in sorted(each.items()))
    beside = cluster.DATA_CPUS if config.data.engine == "ray" else 0.0
    asked = f"{config.scaling.workers} workers of {words} each" + (
        f" and {beside:g} CPU for Ray Data" if beside else ""
    )
    needs = {"workers": config.scaling.workers, "resources_per_worker": each, "cpus_for_data": beside}
    return "; ".join([f"{capacity.describe()} for {asked}", *files.notes(config, use_gpu)]), needs


def _storage(config: Config) -> tuple[str, list[Step]]:
    steps = probe(config.storage)
    words = ", ".join(step.warning or step.name for step in steps)
    return f"{open_store(config.storage).uri}: {words}", steps


def _existing(config: Config, facts: Facts) -> tuple[str, tuple[bool, str | None]]:
    folder = runs.RunFolder.of(config)
    before = folder.started_with()
    result, seen = folder.result()
    if before is None:
        return "new", (False, seen)
    found = runs.differences(*before, config, facts)
    if found:
        raise UserError(
            *(f"run.name: {config.run.name} exists and differs; {difference}" for difference in found),
            f"run.name: take another name for another job, or make the differing fields those of {config.run.name}",
        )
    if (
        result
        and records.is_final(folder.store, result)
        and result["status"] == "finished"
        and _is_done(result, config)
    ):
        return f"complete after {result['steps']} steps", (True, seen)
    tracking.merged(folder.store, 0)  # read at the end, when it would be late to find a part damaged
    return "to be continued", (False, seen)


def _is_done(result: dict[str, Any], config: Config) -> bool:
    # Not from the number of rows: those of a language model are packed into sequences. The data and the global batch
    # are known to be the same.
    per_epoch = round(result["steps"] / result["epochs"])
    total = config.training.epochs * per_epoch
    if config.training.max_steps is not None:
        total = min(total, config.training.max_steps)
    return bool(result["steps"] >= total or (result.get("stopped_early") and result.get("total_steps") == total))
