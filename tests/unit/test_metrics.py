"""Metrics equal what is worked out by hand, or what scikit-learn and scipy say of the same rows."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from pipeline.config import Metrics, Task
from pipeline.errors import UserError
from pipeline.metrics import Scorer, best_of, check_names, default_names, names_of

ROOT = Path(__file__).resolve().parents[2]
CLASSIFICATION = ["accuracy", "f1", "precision", "recall", "matthews_correlation"]


def logits(*classes: int, num_labels: int = 3) -> Any:
    return np.eye(num_labels, dtype=np.float32)[list(classes)]


# Names


@pytest.mark.parametrize("task", ["text-classification", "regression", "multi-label"])
def test_default_metrics_fit_their_task(task: Task) -> None:
    assert check_names(Metrics(), task) == []
    assert names_of(Metrics(), task) == default_names(task)


@pytest.mark.parametrize(
    ("fields", "task", "expected"),
    [
        ({}, "text-classification", ("accuracy", "max")),
        ({}, "regression", ("mse", "min")),
        ({}, "multi-label", ("f1", "max")),
        ({"names": ["mae", "pearson"]}, "regression", ("mae", "min")),
        ({"names": ["mae", "pearson"], "best": "pearson"}, "regression", ("pearson", "max")),
        ({"names": ["glue/mrpc"]}, "text-classification", ("accuracy", "max")),
        ({"names": ["glue/mrpc"], "best": "f1"}, "text-classification", ("f1", "max")),
        ({"names": ["glue/stsb"], "best": "spearmanr"}, "regression", ("spearmanr", "max")),
        ({"names": ["accuracy"], "best": "loss"}, "text-classification", ("loss", "min")),
        ({"names": ["accuracy"], "best": "eval_loss"}, "text-classification", ("loss", "min")),
        ({"names": ["accuracy"], "best": "eval_accuracy", "mode": "min"}, "text-classification", ("accuracy", "min")),
        ({"names": []}, "text-classification", ("loss", "min")),
    ],
)
def test_best_metric_and_its_direction(fields: dict[str, Any], task: Task, expected: tuple[str, str]) -> None:
    assert best_of(Metrics(**fields), task) == expected


@pytest.mark.parametrize(
    ("fields", "task", "words"),
    [
        ({"names": ["acuracy"]}, "text-classification", "no known metric and no module file; did you mean 'accuracy'?"),
        ({"names": ["glue/mprc"]}, "text-classification", "did you mean 'glue/mrpc'?"),
        ({"names": ["pearson"]}, "text-classification", "is for regression, not for text-classification; allowed: acc"),
        ({"names": ["accuracy"]}, "regression", "not for regression; allowed: pearson, spearman, mse, mae"),
        ({"names": ["glue/stsb"]}, "text-classification", "'glue/stsb' is for regression"),
        ({"names": ["matthews_correlation"]}, "multi-label", "not for multi-label"),
        ({"names": ["nowhere/metric.py"]}, "text-classification", "no module file"),
        ({"names": ["accuracy"], "best": "f1"}, "text-classification", "'f1' is not measured; allowed: loss, accuracy"),
        ({"names": ["accuracy"], "best": "acc"}, "text-classification", "did you mean 'accuracy'? allowed"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused_with_what_would_be_right(fields: dict[str, Any], task: Task, words: str) -> None:
    (problem,) = check_names(Metrics(**fields), task)
    assert words in problem
    with pytest.raises(UserError):
        best_of(Metrics(**fields), task)


# Classification


def test_binary_scores_are_those_of_class_1() -> None:
    scores = Scorer(CLASSIFICATION, "text-classification", 2).compute(
        logits(1, 1, 1, 0, 0, 0, 1, 0, num_labels=2), np.array([1, 1, 0, 0, 1, 0, 1, 0])
    )
    # 3 true positives, 1 false positive, 1 false negative, 3 true negatives
    assert scores == pytest.approx(
        {"accuracy": 0.75, "f1": 0.75, "precision": 0.75, "recall": 0.75, "matthews_correlation": 0.5}
    )
    assert all(type(value) is float for value in scores.values())


def test_scores_of_many_classes_equal_scikit_learn_over_all_rows() -> None:
    random = np.random.default_rng(0)
    wanted, found = random.integers(0, 77, 3080), random.normal(size=(3080, 77)).astype(np.float32)
    found[np.arange(3080), wanted] += 2
    chosen = found.argmax(-1)
    scores = Scorer(CLASSIFICATION, "text-classification", 77).compute(found, wanted)
    assert scores == {
        "accuracy": metrics.accuracy_score(wanted, chosen),
        "f1": metrics.f1_score(wanted, chosen, average="macro"),
        "precision": metrics.precision_score(wanted, chosen, average="macro"),
        "recall": metrics.recall_score(wanted, chosen, average="macro"),
        "matthews_correlation": metrics.matthews_corrcoef(wanted, chosen),
    }
    assert Scorer(CLASSIFICATION, "text-classification", 77).compute(chosen, wanted) == scores


def test_f1_of_a_class_that_never_occurs_is_as_scikit_learn_has_it_without_a_warning() -> None:
    scorer = Scorer(CLASSIFICATION, "text-classification", 4)
    # Of four classes, 3 has neither rows nor predictions: it is left out. 2 is predicted and has no rows: it counts 0.
    wanted, found = np.array([0, 1, 0, 1]), np.array([0, 1, 0, 2])
    scores = scorer.compute(found, wanted)
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert scores["precision"] == pytest.approx((1 + 1 + 0) / 3)
    assert scores["recall"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    for name, score in (("f1", metrics.f1_score), ("recall", metrics.recall_score)):
        assert scores[name] == score(wanted, found, average="macro", zero_division=0)
    assert scorer.compute(logits(0, 1, 0, 1), np.array([0, 1, 0, 1])) == pytest.approx(dict.fromkeys(CLASSIFICATION, 1))
    # Where all rows are of class 0, there is nothing of class 1 to find.
    binary = Scorer(CLASSIFICATION, "text-classification", 2)
    assert binary.compute(np.array([0, 0]), np.array([0, 0])) == {
        "accuracy": 1, "f1": 0, "precision": 0, "recall": 0, "matthews_correlation": 0
    }  # fmt: skip


def test_one_row_counts() -> None:
    assert Scorer(["accuracy", "f1"], "text-classification", 2).compute(np.array([1]), np.array([1])) == {
        "accuracy": 1.0,
        "f1": 1.0,
    }


def test_a_scorer_starts_afresh_each_time() -> None:
    scorer = Scorer(["accuracy"], "text-classification", 2)
    assert scorer.compute(np.array([0, 0]), np.array([0, 1])) == {"accuracy": 0.5}
    assert scorer.compute(np.array([0, 0, 1]), np.array([0, 0, 1])) == {"accuracy": 1.0}


def test_nan_logits_do_not_score_as_class_0() -> None:
    scores = Scorer(["accuracy", "f1"], "text-classification", 2).compute(
        np.array([[np.nan, np.nan], [0, 1]], np.float32), np.array([0, 1])
    )
    assert list(scores) == ["accuracy", "f1"]
    assert all(math.isnan(value) for value in scores.values())


def test_rows_must_match() -> None:
    scorer = Scorer(["accuracy"], "text-classification", 2)
    with pytest.raises(ValueError, match="2 predictions for 3 rows"):
        scorer.compute(np.array([0, 1]), np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="0 predictions for 0 rows"):
        scorer.compute(np.array([]), np.array([]))


# Regression


def test_regression_scores_equal_scipy_in_double_precision() -> None:
    random = np.random.default_rng(1)
    wanted = random.normal(size=500).astype(np.float32)
    found = (wanted + random.normal(size=500)).astype(np.float32)
    scores = Scorer(["mse", "mae", "pearson", "spearman"], "regression", 1).compute(found[:, None], wanted)
    x, y = found.astype(np.float64), wanted.astype(np.float64)
    assert scores == pytest.approx(
        {
            "mse": ((x - y) ** 2).mean(),
            "mae": np.abs(x - y).mean(),
            "pearson": stats.pearsonr(x, y).statistic,
            "spearman": stats.spearmanr(x, y).statistic,
        },
        rel=1e-12,
    )


@pytest.mark.parametrize(("found", "wanted"), [([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [2, 2, 2]), ([1], [1])])
def test_correlation_with_a_constant_is_zero_without_a_warning(found: list[float], wanted: list[float]) -> None:
    scores = Scorer(["pearson", "spearman"], "regression", 1).compute(np.array(found, np.float32), np.array(wanted))
    assert scores == {"pearson": 0.0, "spearman": 0.0}


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_no_finite_number_give_nan(broken: float) -> None:
    scores = Scorer(["mse", "pearson", "spearman", "mae"], "regression", 1).compute(
        np.array([broken, 1], np.float32), np.array([1.0, 2.0])
    )
    assert all(math.isnan(value) for value in scores.values())


# Multi-label


def test_multi_label_accuracy_is_of_whole_rows_and_f1_the_mean_over_labels() -> None:
    found = np.array([[3, -1, -2], [0.1, 0.2, -1], [-1, -1, -1], [0, 2, -1]], np.float32)
    wanted = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]], np.float32)
    scores = Scorer(["accuracy", "f1", "precision", "recall"], "multi-label", 3).compute(found, wanted)
    # per label: f1 1 and 2/3 and, for the one that never occurs, 0; precision 1, 1/2, 0; recall 1, 1, 0
    assert scores == pytest.approx({"accuracy": 0.75, "f1": 5 / 9, "precision": 0.5, "recall": 2 / 3})
    assert Scorer(["f1"], "multi-label", 3).compute(found > 0, wanted) == pytest.approx({"f1": 5 / 9})


def test_one_label_is_scored_as_on_or_off() -> None:
    scores = Scorer(["accuracy", "f1"], "multi-label", 1).compute(
        np.array([[1], [1], [-1]], np.float32), np.array([[1], [0], [0]])
    )
    assert scores == pytest.approx({"accuracy": 2 / 3, "f1": 2 / 3})


# GLUE


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("glue/mrpc", ["accuracy", "f1"]),
        ("glue/qqp", ["accuracy", "f1"]),
        ("glue/cola", ["matthews_correlation"]),
        *((f"glue/{task}", ["accuracy"]) for task in ("sst2", "qnli", "rte", "wnli", "mnli", "mnli_matched", "hans")),
    ],
)
def test_glue_tasks_give_what_glue_reports(name: str, keys: list[str]) -> None:
    found, wanted = np.array([1, 1, 0, 1, 0]), np.array([1, 0, 0, 1, 1])
    singly = Scorer(["accuracy", "f1", "matthews_correlation"], "text-classification", 2).compute(found, wanted)
    assert Scorer([name], "text-classification", 2).compute(found, wanted) == {key: singly[key] for key in keys}
    assert best_of(Metrics(names=[name]), "text-classification") == (keys[0], "max")


def test_stsb_gives_both_correlations_as_glue_names_them() -> None:
    found, wanted = np.array([1, 2, 3, 5.0]), np.array([1, 3, 2, 4.0])
    scores = Scorer(["glue/stsb"], "regression", 1).compute(found, wanted)
    assert scores == {
        "pearson": pytest.approx(stats.pearsonr(found, wanted).statistic),
        "spearmanr": pytest.approx(0.8),
    }
