"""All metrics of ours as one `evaluate` module; the configuration name says which.

    evaluate.load("pipeline/metrics/score.py", "f1").compute(predictions=[0, 1], references=[1, 1], num_labels=2)

The `evaluate` wheel has no metric in it and would fetch even accuracy from the hub. This file imports nothing of the
rest of the package, so that `evaluate.load` can copy it.
"""

import warnings
from typing import Any

import datasets
import evaluate
import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn import metrics

Numbers = npt.NDArray[Any]

GLUE_SCORES = {"cola": ("matthews_correlation",), "stsb": ("pearson", "spearmanr"), "mrpc": ("accuracy", "f1")}
GLUE_SCORES["qqp"] = GLUE_SCORES["mrpc"]
CORRELATIONS = ("pearson", "spearman", "spearmanr")
REGRESSION = ("mse", "mae", *CORRELATIONS, "glue/stsb")


class Score(evaluate.Metric):
    """Accuracy, f1, precision, recall, matthews_correlation, pearson, spearman, mse, mae or `glue/TASK`.

    Inputs are class numbers, numbers, or with `task="multi-label"` rows of 0 and 1. Decisions:

    - f1, precision and recall are those of class 1 where there are two classes, else the plain mean over the classes,
      as scikit-learn's `average="macro"`: all that occur among references or predictions. A class that is predicted and
      has no rows counts 0, as one that has rows and is never predicted; one that has neither is left out.
    - Multi-label accuracy is the share of rows with all labels right; the others are the mean over the labels.
    - A correlation with a constant, or over fewer than two rows, is 0, as scikit-learn has it for Matthews'.
    """

    def __init__(self, *args: Any, task: str = "text-classification", **kwargs: Any) -> None:
        self.multi_label = task == "multi-label"
        super().__init__(*args, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value("float64" if self.config_name in REGRESSION else "int64")
        kind = datasets.Sequence(value) if self.multi_label else value
        return evaluate.MetricInfo(
            description="Metrics of classification and regression.",
            citation="",
            inputs_description="predictions and references, one for each row",
            features=datasets.Features({"predictions": kind, "references": kind}),
        )

    def _build_data_dir(self) -> str:
        # Without this, building a metric makes a folder in the home, which may be read-only. It stays empty with
        # keep_in_memory; without, evaluate writes its temporary file here.
        return "."

    def _compute(self, predictions: Any, references: Any, num_labels: int | None = None) -> dict[str, float]:
        # As lists: the format "numpy" would round to float32.
        found, wanted = np.asarray(predictions), np.asarray(references)
        if num_labels is None:
            num_labels = max(2, int(max(found.max(), wanted.max())) + 1)
        names: tuple[str, ...] = (self.config_name,)
        if self.config_name.startswith("glue/"):
            names = GLUE_SCORES.get(self.config_name.removeprefix("glue/"), ("accuracy",))
        with warnings.catch_warnings():
            # scipy and scikit-learn warn where a score is undefined; what it then is, is decided above.
            warnings.simplefilter("ignore")
            return {name: float(_score(name, found, wanted, num_labels)) for name in names}


def _score(name: str, found: Numbers, wanted: Numbers, num_labels: int) -> Any:
    """One metric, a number; `found` and `wanted` have the shape (rows,), or (rows, labels) for multi-label."""
    if name in CORRELATIONS:
        if len(found) < 2:
            return 0.0
        value = (stats.pearsonr if name == "pearson" else stats.spearmanr)(found, wanted).statistic
        return 0.0 if np.isnan(value) else value
    if name == "mse":
        return metrics.mean_squared_error(wanted, found)
    if name == "mae":
        return metrics.mean_absolute_error(wanted, found)
    if found.ndim == 2 and found.shape[1] == 1:
        found, wanted, num_labels = found[:, 0], wanted[:, 0], 2  # one label only: on or off
    if name == "accuracy":
        return metrics.accuracy_score(wanted, found)
    if name == "matthews_correlation":
        return metrics.matthews_corrcoef(wanted, found)
    score = {"f1": metrics.f1_score, "precision": metrics.precision_score, "recall": metrics.recall_score}[name]
    labels = [1] if found.ndim == 1 and num_labels == 2 else None
    return score(wanted, found, labels=labels, average="macro", zero_division=0)
