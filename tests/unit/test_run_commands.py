"""`pipeline runs ...` on a terminal: wrong addresses, names with brackets and of other alphabets, what to type next."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from pipeline import cli, summary
from pipeline.config import Config
from pipeline.result import Result
from pipeline.summary import show_list, show_result
from tests.unit import stored
from tests.unit.test_commands import run_cli

RESULT = {key: value for key, value in stored.RESULT.items() if key != "uri"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", ""], "STORAGE: is empty"),
        (["list", "no-such-folder"], "STORAGE: no-such-folder: no such folder"),
        (["list", "file"], "STORAGE: file is a file"),
        (["list", "a" * 300], "STORAGE: " + "a" * 200 + ": cannot be read: File name too long"),
        (["list", "file/below"], "STORAGE: file/below: no such folder"),
        (["list", "a\0b"], "STORAGE: 'a\\x00b' has white space"),
        (["list", "a\udcff"], "STORAGE: 'a\\udcff' has white space"),
        (["show", "./a\udcff"], "RUN: './a\\udcff' has white space"),
        (["show", "one", "--storage", "a\udcff"], "--storage: 'a\\udcff' has white space"),
        (["show", "one", "--storage", ""], "--storage: is empty"),
        (["show", "one", "--storage", "nothing"], "--storage: nothing: no such folder"),
        (["show", ""], "RUN: is empty"),
        (["show", "."], "RUN: . has no config.yaml"),
        (["show", ".."], "RUN: .. has no config.yaml"),
        (["show", "../x"], "RUN: ../x has no config.yaml"),
        (["show", "plain/"], "RUN: plain/ has no config.yaml"),
        *((["show", run, "--storage", "."], "RUN: ") for run in ("", ".", "..", "../x", "plain/", "a\0b", "s3://b/x")),
    ],
)
def test_a_wrong_run_or_storage_is_named_in_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    status, out, err = run_cli(["runs", *arguments], capsys)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"error: {words}")


def test_what_stands_in_brackets_is_printed_and_metrics_have_one_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    stored.finished(tmp_path / "runs[old]" / "[q]")
    status, out, _ = run_cli(["runs", "list", "runs[old]"], capsys)
    assert status == 0
    assert "[q]" in out
    # Written sorted, as result.json once was: the loss is first all the same.
    assert "loss 0.2500, accuracy 0.5000, f1 nan" in out
    status, out, _ = run_cli(["runs", "show", "runs[old]/[q]"], capsys)
    assert f"{tmp_path}/runs[old]/[q]" in out
    assert "loss 0.2500, accuracy 0.5000, f1 nan" in out
    assert out.splitlines()[-1].endswith("runs copy 'runs[old]/[q]' DIR")
    out_file = io.StringIO()
    row = {"run": "a", "status": "finished", "best": {"eval_[/b]": 1.0, "eval_loss": 2.0}, "started": ""}
    show_list([row], Console(file=out_file, width=200))
    assert "loss 2.0000, [/b] 1.0000" in out_file.getvalue()


def shown(config: Config, **changes: Any) -> str:
    out = io.StringIO()
    result = Result(**{**RESULT, **changes}, uri="/x/runs[old]/one", already=True)
    show_result(result, config, Console(file=out, width=200))
    return out.getvalue()


def test_a_complete_run_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(sys, "argv", [".venv/bin/pipeline", "train"])
    config = Config.model_validate({"storage": {"path": "/x/runs[old]"}})
    text = shown(config)
    assert "Nothing to train; training.epochs=3 trains one more, another run.name starts anew." in text
    assert "Next:  .venv/bin/pipeline runs export '/x/runs[old]/one' ./one-model" in text
    assert "training.epochs=7 trains one more" in shown(config, epochs=6.0)
    longer = Config.model_validate({"training": {"epochs": 9}})
    assert "training.epochs=10 trains on" in shown(longer, stopped_early=True)
    limited = Config.model_validate({"training": {"max_steps": 4}})
    assert "a higher training.max_steps trains on" in shown(limited)


def test_the_program_is_named_as_it_can_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/pipeline")
    assert summary.program() == "pipeline"
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["/x/pipeline/__main__.py"])
    assert summary.program() == f"{sys.executable} -m pipeline"


@pytest.mark.parametrize(("arguments", "goes_on"), [(["train"], True), (["check"], False), (["runs", "list"], False)])
def test_only_what_trains_says_that_it_goes_on(
    arguments: list[str], goes_on: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(**_: object) -> None:
        raise click.exceptions.Abort

    monkeypatch.setattr(cli, "app", interrupted)
    status, _, err = run_cli(arguments, capsys)
    assert (status, err.startswith("error: interrupted")) == (130, True)
    assert ("the same command continues the run" in err) is goes_on


def program(*arguments: str, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments], cwd=cwd, env={**os.environ, **environ}, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_terminal_that_knows_ascii_alone_is_told_other_names_as_escapes(tmp_path: Path) -> None:
    stored.finished(tmp_path / "rün")
    done = program("runs", "list", ".", cwd=tmp_path, PYTHONIOENCODING="ascii", COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    assert "r\\xfcn" in done.stdout


def test_a_current_folder_that_was_deleted_is_told_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    status, out, err = run_cli(["runs", "list"], capsys)
    assert (status, out) == (2, "")
    assert err == "error: the current folder was deleted; change to another one\n"
