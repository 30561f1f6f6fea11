"""Every bad input ends in one line with the right words, before anything is started or written."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from pipeline import hub, settings
from pipeline.errors import UserError
from pipeline.launch import check
from tests.bad_inputs.case import GOOD, SILENT, Case
from tests.bad_inputs.catalogue import CASES, THROUGH_THE_PROGRAM

LIMIT_S = 15.0


@pytest.fixture(scope="session")
def silent() -> Iterator[str]:
    """The address of a hub that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def laid_out(case: Case, folder: Path) -> list[str]:
    """Writes the files of a case into `folder`; gives the arguments of a command."""
    files = {"train.csv": GOOD, "validation.csv": GOOD, **case.files}
    if case.job is not None:
        files["job.yaml"] = case.job.encode()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    fixed = ["data.train=train.csv", "data.validation=validation.csv", "storage.path=runs", "data.engine=torch"]
    return [*(["-c", "job.yaml"] if case.job is not None else []), *fixed, *case.overrides]


def is_told(case: Case, problems: list[str]) -> bool:
    return any(all(word in problem for word in case.words) for problem in problems)


def test_there_are_as_many_as_promised() -> None:
    assert len(CASES) >= 60
    assert set(THROUGH_THE_PROGRAM) <= set(CASES)
    assert len(THROUGH_THE_PROGRAM) >= 12


@pytest.mark.parametrize("name", CASES)
def test_it_is_told_in_one_line_by_check(
    name: str, tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    arguments = laid_out(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    environ = {key: silent if value == SILENT else value for key, value in case.environ.items()}
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(hub, "_silent", False)
    monkeypatch.setattr(constants, "ENDPOINT", environ.get("HF_ENDPOINT", constants.ENDPOINT))
    file = arguments[1] if case.job is not None else None
    try:
        rows = check(settings.load(file, arguments[2 if file else 0 :], environ))
    except UserError as error:
        problems = error.problems
    else:
        problems = [row.found for row in rows if not row.passed]
    assert is_told(case, problems), problems
    assert len(problems) == 1
    assert "\n" not in problems[0]
    assert not (tmp_path / "runs" / "banking77").exists()


@pytest.mark.parametrize("name", THROUGH_THE_PROGRAM)
def test_the_program_ends_with_2_and_one_line_within_seconds(name: str, tmp_path: Path, silent: str) -> None:
    case = CASES[name]
    arguments = laid_out(case, tmp_path)
    environ = {key: silent if value == SILENT else value for key, value in case.environ.items()}
    command = [str(Path(sys.executable).with_name("pipeline")), "train", *arguments]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **environ}, capture_output=True, text=True, timeout=240, check=False
    )
    seconds = time.monotonic() - began
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert is_told(case, [line])
    assert done.stdout == ""
    assert not (tmp_path / "runs" / "banking77").exists()
    # On a machine that others use as well, everything takes longer by as much.
    assert seconds < LIMIT_S * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
