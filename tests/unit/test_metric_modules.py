"""Metrics as modules of `evaluate`: ours offline, the user's own, and numbers in float32."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import Metrics, Task
from pipeline.errors import RunError, UserError
from pipeline.metrics import Scorer, best_of, check_modules, check_names

ROOT = Path(__file__).resolve().parents[2]
CLASSIFICATION = ["accuracy", "f1", "precision", "recall", "matthews_correlation"]


# As evaluate modules

OWN = '''
import datasets
import evaluate


class Share(evaluate.Metric):
    """Share of predictions that are 1."""

    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        if max(predictions) > 1:
            raise ValueError("only 0 and 1")
        return {"share": sum(predictions) / len(predictions)}
'''


def test_a_module_of_the_users_own_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    (folder / "share.py").write_text(OWN)
    for name in (str(folder), str(folder / "share.py")):
        assert check_names(Metrics(names=["accuracy", name]), "text-classification") == []
        assert "metrics.best: give one of the results" in check_names(Metrics(names=[name]), "text-classification")[0]
        (problem,) = check_names(Metrics(names=[name], best="share"), "text-classification")
        assert problem.startswith("metrics.mode: is needed")
        assert best_of(Metrics(names=[name], best="share", mode="max"), "text-classification") == ("share", "max")


SCRIPT = """
import sys, warnings
sys.modules["transformers"] = None  # evaluate imports its pipelines, which takes far longer than this test
warnings.simplefilter("error")
import evaluate, numpy, json
del sys.modules["transformers"]
from pipeline.errors import RunError, UserError
from pipeline.metrics import Scorer
own, score = sys.argv[1:]
scorer = Scorer(["accuracy", own], "text-classification", 2)
results = [scorer.compute(numpy.array([1, 1, 0, 1]), numpy.array([1, 0, 0, 1]))]
f1 = evaluate.load(score, "f1", keep_in_memory=True)
results.append(f1.compute(predictions=[1, 1, 0, 1], references=[1, 0, 0, 1], num_labels=2))
try:
    scorer.compute(numpy.array([2]), numpy.array([1]))
except RunError as error:
    results.append(str(error))
print(json.dumps(results))
"""


def test_modules_load_offline_in_several_processes_with_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    own, score = tmp_path / "share.py", ROOT / "pipeline" / "metrics" / "score.py"
    own.write_text(OWN)
    # A home below a file can be neither made nor written, not even by root.
    environ = os.environ | {"HOME": f"{own}/home", "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
    environ |= {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", SCRIPT, str(own), str(score)]
    running = [
        subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [(process, *process.communicate(timeout=280)) for process in running]
    for process, out, err in answers:
        assert process.returncode == 0, err
        results = json.loads(out.splitlines()[-1])
        assert results[0] == {"accuracy": 0.75, "share": 0.75}
        assert results[1] == {"f1": pytest.approx(0.8)}
        assert results[2] == f"metric {str(own)!r} failed: ValueError: only 0 and 1"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("this is no Python", "SyntaxError"), ("import no_such_module_here", "no_such_module_here"),
        ("raise SystemExit('out')", "SystemExit: out"), ("number = 1", ""),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_loaded_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: str
) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    module = tmp_path / "own.py"
    module.write_text(content)
    with pytest.raises(UserError) as caught:
        check_modules(["accuracy", str(module)], "text-classification")
    (problem,) = caught.value.problems
    assert problem.startswith(f"metrics.names: {str(module)!r} cannot be loaded: ")
    assert words in problem
    assert "\n" not in problem


def test_a_module_in_the_home_of_nobody_is_no_module_file() -> None:
    (problem,) = check_names(Metrics(names=["~nobody-here/own.py"]), "text-classification")
    assert "is no known metric and no module file" in problem


def test_a_module_that_is_not_on_this_machine_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no module file on this machine"):
        Scorer([str(tmp_path / "gone.py")], "text-classification", 2)


# What the model's outputs become


@pytest.mark.parametrize("task", ["text-classification", "regression", "multi-label"])
def test_bf16_logits_give_losses_and_numbers_in_float32(task: Task) -> None:
    import torch

    from pipeline.tasks import predictions, row_losses

    random = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 1 if task == "regression" else 3, generator=random).to(torch.bfloat16)
    labels = {
        "text-classification": torch.tensor([0, 1, 2, 0, 1, 2]), "regression": torch.linspace(-1, 1, 6),
        "multi-label": torch.ones(6, 3),
    }[task]  # fmt: skip
    losses, found = row_losses(task, outputs, labels), predictions(task, outputs)
    assert losses.dtype == torch.float32
    # What bf16 holds is exact in float32, so that nothing more is lost after the model.
    assert torch.equal(losses, row_losses(task, outputs.float(), labels))
    assert found.dtype == (torch.float32 if task == "regression" else torch.int64)
    assert found.cpu().numpy().shape == ((6, 3) if task == "multi-label" else (6,))
