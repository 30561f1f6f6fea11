"""Bad input is refused before a worker starts: one line for each problem, all of them together, nothing written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import cluster
from pipeline.config import Config
from pipeline.launch import check
from pipeline.settings import load

TEXTS = "text,category\n" + "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(8))


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    """Overrides for a good job on small files; arguments replace the files' content."""

    def make(train: str = TEXTS, validation: str = TEXTS) -> list[str]:
        (tmp_path / "train.csv").write_text(train)
        (tmp_path / "validation.csv").write_text(validation)
        return [
            f"data.train={tmp_path}/train.csv", f"data.validation={tmp_path}/validation.csv",
            f"storage.path={tmp_path}/runs", "data.engine=torch",
        ]  # fmt: skip

    return make


def _problems(*overrides: str) -> list[str]:
    return [row.found for row in check(load(None, list(overrides), {})) if not row.passed]


def test_a_good_job_passes_every_check(files: Callable[..., list[str]]) -> None:
    rows = check(load(None, files(), {}))
    assert [row.name for row in rows if not row.passed] == []
    assert {row.name for row in rows} == {"strategy", "metrics", "storage", "data", "model", "capacity", "run"}


@pytest.mark.parametrize(
    ("train", "validation", "more", "words"),
    [
        (TEXTS, TEXTS, ["data.columns.label=intent"], ["train.csv: no column 'intent'", "'text', 'category'"]),
        ("text,category\n", TEXTS, [], ["data.train", "no rows"]),
        ("text,category\nx,a\n", TEXTS, [], ["data.train", "1"]),
        (TEXTS + "y,\n", TEXTS, [], ["train.csv", "row 9"]),
        (TEXTS, "text,category\nx,c\n", [], ["validation.csv", "'c'"]),
        (TEXTS, TEXTS, ["data.max_length=4096"], ["data.max_length: 4096", "512"]),
        (TEXTS, TEXTS, ["metrics.names=[acuracy]"], ["acuracy", "accuracy"]),
        (TEXTS, TEXTS, ["model.path=package:no_such_package"], ["model.path", "no_such_package"]),
        (TEXTS, TEXTS, ["model.config={hidden_dropout: 0.1}"], ["model.config.hidden_dropout", "bert"]),
        (TEXTS, TEXTS, ["training.mixed_precision=fp16", "scaling.use_gpu=false"], ["fp16 needs a GPU"]),
        (TEXTS, TEXTS, ["scaling.workers=4000", "training.epochs=1"], ["4000 workers", "can hold"]),
        (TEXTS, TEXTS, ["scaling.use_gpu=true"], ["1 GPU", "0 GPUs"]),
        (TEXTS, TEXTS, ["strategy.kind=fsdp", "strategy.version=1"], ["strategy.version: 1 needs GPUs"]),
        (TEXTS, TEXTS, ["strategy.kind=deepspeed", "strategy.config={folder}/batch.json"],
         ["train_micro_batch_size_per_gpu is 5", "is 32"]),
        (TEXTS, TEXTS, ["strategy.kind=deepspeed", "strategy.config={folder}/warm-up.json"],
         ["warmup_num_steps is 9", "of 2 steps is 0"]),
        (TEXTS, TEXTS, ["strategy.accelerate_config=missing.yaml"], ["accelerate_config: missing.yaml: no such file"]),
        (TEXTS, TEXTS, ["storage={path: s3://bucket/x, endpoint_url: http://127.0.0.1:9}"], ["127.0.0.1:9"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_was_found(
    files: Callable[..., list[str]], tmp_path: Path, train: str, validation: str, more: list[str], words: list[str]
) -> None:
    (tmp_path / "batch.json").write_text('{"train_micro_batch_size_per_gpu": 5}')
    scheduler = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9}}
    (tmp_path / "warm-up.json").write_text(json.dumps({"scheduler": scheduler}))
    problems = _problems(*files(train, validation), *(setting.replace("{folder}", str(tmp_path)) for setting in more))
    assert problems
    assert any(all(word in problem for word in words) for problem in problems), problems


def test_the_table_says_what_becomes_of_a_deepspeed_configuration(
    files: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}')
    settings = ["strategy.kind=deepspeed", f"strategy.config={tmp_path}/ds.json"]
    found = {row.name: row for row in check(load(None, [*files(), *settings], {}))}
    assert all(row.passed for row in found.values())
    assert "ZeRO stage 1" in found["strategy"].found
    assert "mixed precision fp16 from strategy.config" in found["strategy"].found
    assert "bf16 in place of fp16" in found["capacity"].found


def test_problems_of_all_kinds_are_reported_together_and_nothing_is_written(
    files: Callable[..., list[str]], tmp_path: Path
) -> None:
    arguments = files("text,category\nx,a\ny,\n", TEXTS)
    problems = _problems(*arguments, "data.max_length=4096", "metrics.names=[nothing]", "scaling.workers=4000")
    assert len(problems) >= 4
    assert not (tmp_path / "runs" / "banking77").exists()


def test_a_run_of_another_job_is_refused_with_the_differences(files: Callable[..., list[str]], tmp_path: Path) -> None:
    from pipeline.data.inspect import inspect
    from pipeline.run import RunFolder

    config = load(None, files(), {})
    RunFolder.of(config).take_over(config, inspect(config))
    assert _problems(*files(), "training.epochs=9", "scaling.workers=1", "training.batch_size_per_worker=64") == []
    found = _problems(*files(), "training.learning_rate=0.1", "run.seed=7", "training.global_batch_size=10")
    text = "\n".join(found)
    for words in ("training.learning_rate: the run has 0.0005", "run.seed: the run has 42", "the run has 64 rows"):
        assert words in text
    assert any("data.train" in problem for problem in _problems(*files(TEXTS + "more,a\n")))


def test_ray_data_needs_a_cpu_beside_the_workers() -> None:
    capacity = cluster.Capacity(({"CPU": 2.0},), local=False)
    ray = Config.model_validate({"scaling": {"workers": 2, "use_gpu": False}})
    torch = Config.model_validate({"scaling": {"workers": 2, "use_gpu": False}, "data": {"engine": "torch"}})
    assert "1 CPU for Ray Data" in cluster.problems(ray, capacity)[0]
    assert cluster.problems(torch, capacity) == []


def test_workers_must_fit_on_single_nodes_not_only_on_their_sum() -> None:
    nodes: tuple[dict[str, float], ...] = ({"CPU": 3.0}, {"CPU": 3.0})
    config = Config.model_validate({"scaling": {"workers": 3, "resources_per_worker": {"CPU": 2}, "use_gpu": False}})
    assert "can hold 2" in cluster.problems(config, cluster.Capacity(nodes, local=False))[0]


def run_cli(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    from pipeline.cli import run_command

    status = run_command(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_the_program_says_each_problem_in_a_line_and_exits_with_2(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_cli(["train", *files(), "training.epoch=3", "data.max_length=none"], capsys)
    assert status == 2
    lines = err.strip().splitlines()
    assert all(line.startswith("error: ") for line in lines)
    assert any("training.epoch" in line and "epochs" in line for line in lines)
    assert any("data.max_length" in line and "'none'" in line for line in lines)


def test_check_prints_a_row_a_check_and_json_for_scripts(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run_cli(["check", "--json", *files()], capsys)
    found: list[dict[str, Any]] = json.loads(out)
    assert status == 0
    assert all(row["passed"] for row in found)
    status, out, err = run_cli(["check", *files(), "scaling.workers=4000"], capsys)
    assert (status, "wrong" in out) == (2, True)
    assert "4000 workers" in err


@pytest.mark.parametrize(
    "command", [["train"], ["check"], ["runs", "list"], ["runs", "show"], ["runs", "export"]], ids=" ".join
)
def test_help_of_every_command_shows_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run_cli([*command, "--help"], capsys)
    assert status == 0
    assert f"Example:\n  pipeline {' '.join(command)}" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "show", "nothing", "--storage", "{folder}"], "no run 'nothing'"),
        (["runs", "export", "{folder}/nothing", "{folder}/x"], "has no config.yaml"),
        (["train", "-c", "{folder}/missing.yaml"], "missing.yaml"),
        (["runs", "export"], "RUN"),
        (["fly"], "fly"),
    ],
)
def test_wrong_commands_are_refused_in_a_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_cli([argument.format(folder=tmp_path) for argument in arguments], capsys)
    assert status == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
