"""Predictions of all validation rows to metrics."""

import sys
import tempfile
import uuid
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.config import Task
from pipeline.errors import RunError, UserError
from pipeline.metrics.names import keys_of, module_file

Numbers = npt.NDArray[Any]


class Scorer:
    """Computes all metrics of a run, each over all rows at once: never a mean of means.

    `names` as in the configuration. Nothing is fetched from a network and nothing written into the home folder, but
    for a user's module, which `evaluate` copies under HF_HOME.
    """

    def __init__(self, names: list[str], task: Task, num_labels: int) -> None:
        self.names, self.task, self.num_labels = names, task, num_labels
        self._metrics = {name: _load(name, task) for name in names}

    def compute(self, predictions: Numbers, references: Numbers) -> dict[str, float]:
        """All metrics by their keys, without `eval_`.

        `predictions` are logits, (rows, num_labels), or what was chosen: class numbers (rows,), numbers (rows,) or
        (rows, 1), for multi-label 0 and 1 (rows, num_labels). `references` are class numbers, numbers, or 0 and 1 of
        that shape. A multi-label logit above 0, which is a sigmoid above 0.5, is a 1. Where a prediction is NaN, or an
        infinite number of a regression, every metric of ours is NaN: a model that has broken down must not score as if
        it had chosen class 0.

        Raises ValueError for no rows or row counts that differ, RunError for a user's module that fails.
        """
        found, wanted = np.asarray(predictions), np.asarray(references)
        if len(found) == 0 or len(found) != len(wanted):
            raise ValueError(f"{len(found)} predictions for {len(wanted)} rows")
        good = np.isfinite if self.task == "regression" else lambda numbers: ~np.isnan(numbers)
        broken = found.dtype.kind == "f" and not bool(good(found).all())
        found, wanted = self._decided(found, wanted)
        results: dict[str, float] = {}
        for name, metric in self._metrics.items():
            keys = keys_of(name)
            if broken:
                results |= dict.fromkeys(keys or (), float("nan"))
            elif keys is not None:
                results |= metric.compute(predictions=found, references=wanted, num_labels=self.num_labels)
            else:
                results |= _own(name, metric, found, wanted)
        return results

    def _decided(self, found: Numbers, wanted: Numbers) -> tuple[Numbers, Numbers]:
        """Predictions and references as the metrics take them."""
        if self.task == "regression":
            return found.reshape(-1).astype(np.float64), wanted.reshape(-1).astype(np.float64)
        if self.task == "multi-label":
            return (found > 0).astype(np.int64), (wanted > 0).astype(np.int64)
        chosen = found.argmax(-1) if found.ndim == 2 else found
        return chosen.astype(np.int64), wanted.astype(np.int64)


def check_modules(names: list[str], task: Task) -> None:
    """Raises UserError for each module of the user's own that cannot be loaded; it is run for that, as it will be."""
    problems = []
    for name in names:
        if keys_of(name) is None:
            try:
                with redirect_stdout(sys.stderr):  # not into `check --json`
                    _load(name, task)
            except RunError as error:
                problems += error.problems
    if problems:
        raise UserError(*problems)


def _load(name: str, task: Task) -> Any:
    if keys_of(name) is not None:
        from pipeline.metrics.score import Score

        return Score(config_name=name, task=task, keep_in_memory=True)
    import evaluate

    file = module_file(name)
    if file is None:
        raise RunError(f"metrics.names: {name!r} is no known metric and no module file on this machine")
    # The folder is only made by evaluate, not used: the rows are kept in memory. Its own name for each process lets
    # several load at once.
    with tempfile.TemporaryDirectory() as folder:
        try:
            return evaluate.load(str(file), keep_in_memory=True, experiment_id=uuid.uuid4().hex, cache_dir=folder)
        except (Exception, SystemExit) as error:  # anything that a user's own code raises
            words = (str(error).strip().splitlines() or [""])[0]
            raise RunError(f"metrics.names: {name!r} cannot be loaded: {type(error).__name__}: {words}") from error


def _own(name: str, metric: Any, found: Numbers, wanted: Numbers) -> dict[str, float]:
    try:
        results = metric.compute(predictions=found, references=wanted)
        return {str(key): float(value) for key, value in results.items()}
    except Exception as error:  # anything that a user's own code raises
        raise RunError(f"metric {name!r} failed: {type(error).__name__}: {error}") from error
