"""Names of metrics: which there are, for which task, and which of them chooses the best checkpoint."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pipeline.config import Metrics, Task
from pipeline.errors import UserError

Mode = Literal["max", "min"]

CLASSES: tuple[Task, ...] = ("text-classification", "multi-label")
TASKS: dict[str, tuple[Task, ...]] = {
    "accuracy": CLASSES,
    "f1": CLASSES,
    "precision": CLASSES,
    "recall": CLASSES,
    "matthews_correlation": ("text-classification",),
    "pearson": ("regression",),
    "spearman": ("regression",),
    "mse": ("regression",),
    "mae": ("regression",),
    "perplexity": ("causal-lm",),
}
GLUE: dict[str, tuple[str, ...]] = {
    "glue/cola": ("matthews_correlation",),
    "glue/sst2": ("accuracy",),
    "glue/mrpc": ("accuracy", "f1"),
    "glue/qqp": ("accuracy", "f1"),
    "glue/stsb": ("pearson", "spearmanr"),
    "glue/mnli": ("accuracy",),
    "glue/mnli_matched": ("accuracy",),
    "glue/mnli_mismatched": ("accuracy",),
    "glue/qnli": ("accuracy",),
    "glue/rte": ("accuracy",),
    "glue/wnli": ("accuracy",),
    "glue/hans": ("accuracy",),
}
"""The result keys of each GLUE task, as `evaluate`'s own glue module calls them."""
LESS_IS_BETTER = ("loss", "mse", "mae", "perplexity")


def default_names(task: Task) -> list[str]:
    """The metrics of a task when none are configured; the first one chooses the best checkpoint."""
    return {
        "text-classification": ["accuracy", "f1"],
        "regression": ["mse", "pearson"],
        "multi-label": ["f1", "accuracy"],
        "causal-lm": ["perplexity"],
    }[task]


def names_of(metrics: Metrics, task: Task) -> list[str]:
    """The configured metrics, or the default ones."""
    return default_names(task) if metrics.names is None else list(dict.fromkeys(metrics.names))


def keys_of(name: str) -> tuple[str, ...] | None:
    """The keys that a metric of ours has in the results; None for a user's module, whose keys only its results show."""
    return GLUE.get(name) or ((name,) if name in TASKS else None)


def check_names(metrics: Metrics, task: Task) -> list[str]:
    """What is wrong with the section `metrics`, a line each: unknown names, names of other tasks, unknown `best`."""
    names = names_of(metrics, task)
    problems = [problem for name in names if (problem := _wrong(name, task)) is not None]
    if problems:
        return problems
    keys = [key for name in names for key in keys_of(name) or ()]
    own = [name for name in names if keys_of(name) is None]
    best = (metrics.best or "").removeprefix("eval_")
    if metrics.best is None:
        if names and names[0] in own:
            problems.append(f"metrics.best: give one of the results of {names[0]!r}, which is a module of your own")
    elif best != "loss" and best not in keys and best not in names and not own:
        known = ["loss", *dict.fromkeys(keys)]
        near = get_close_matches(best, known, 1, 0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        problems.append(f"metrics.best: {metrics.best!r} is not measured; {hint}allowed: {', '.join(known)}")
    elif best in own:
        problems.append(f"metrics.best: {metrics.best!r} is a module; give the name of one of its results")
    elif best not in (*keys, *names, "loss") and metrics.mode is None:
        problems.append(
            f"metrics.mode: is needed for metrics.best {metrics.best!r}, a result of your own module: max or min"
        )
    return problems


def best_of(metrics: Metrics, task: Task) -> tuple[str, Mode]:
    """Key (without `eval_`) and direction of the metric that chooses the best checkpoint.

    `metrics.best`, or the first of the names, or the loss when nothing is measured. Raises UserError for what
    `check_names` finds.
    """
    problems = check_names(metrics, task)
    if problems:
        raise UserError(*problems)
    names = names_of(metrics, task)
    best = (metrics.best or (names[0] if names else "loss")).removeprefix("eval_")
    key = (keys_of(best) or (best,))[0]
    return key, metrics.mode or ("min" if key in LESS_IS_BETTER else "max")


def module_file(name: str) -> Path | None:
    """The Python file of a user's `evaluate` module: itself, or the one named like its folder; None if it is none."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111  (leaves the home of an unknown user as it stands)
    file = path / f"{path.resolve().name}.py" if path.is_dir() else path
    return file if file.suffix == ".py" and file.is_file() else None


def _wrong(name: str, task: Task) -> str | None:
    known = [*TASKS, *GLUE]
    if name in known:
        tasks = TASKS.get(name) or (("regression",) if name == "glue/stsb" else ("text-classification",))
        if task in tasks:
            return None
        fitting = [other for other, others in TASKS.items() if task in others]
        return f"metrics.names: {name!r} is for {' and '.join(tasks)}, not for {task}; allowed: {', '.join(fitting)}"
    if task == "causal-lm":
        return f"metrics.names: {name!r} is not for causal-lm, which predicts no row; allowed: perplexity"
    if module_file(name) is not None:
        return None
    near = get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"metrics.names: {name!r} is no known metric and no module file; {hint}known: {', '.join(TASKS)}, a GLUE task "
        "such as glue/mrpc, or the path of an evaluate module"
    )
