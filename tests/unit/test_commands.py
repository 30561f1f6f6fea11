"""The commands, as a shell and a script see them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


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
    assert {key for row in found for key in row} == {"check", "passed", "found", "details"}
    status, out, err = run_cli(["check", *files(), "scaling.workers=4000"], capsys)
    assert (status, "wrong" in out) == (2, True)
    assert "4000 workers" in err


def test_check_shows_what_is_in_the_data_as_tables(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    classes = "".join(f"text {number},class {number}\n" for number in range(30)) + "more,class 7\n"
    status, out, _ = run_cli(["check", *files("text,category\n" + classes, "text,category\na,class 1\n")], capsys)
    assert status == 0
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert ["rows", "31", "1"] in lines
    assert ["columns", "text, category", "text, category"] in lines
    assert ["cut at data.max_length", "0.0% at 128", "0.0% at 128"] in lines
    assert ["class 7", "2", "0"] in lines
    assert ["and 10 more, 1 rows the rarest", "10", "0"] in lines
    assert ["[CLS] text 0 [SEP]", "4", "class 0", "0"] in lines
    assert any(line[:2] == ["capacity", "ok"] and "2 workers of 1 CPU each" in line[2] for line in lines)


@pytest.mark.parametrize(
    "command",
    [["train"], ["check"], ["runs", "list"], ["runs", "show"], ["runs", "export"], ["runs", "copy"]],
    ids=" ".join,
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
