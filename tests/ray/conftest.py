"""A small job on real data, the program as a subprocess, the embedded S3 server as its store."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import checkpoint
from pipeline.embedded import embedded_store
from pipeline.storage import Store, open_store

DATA = Path(__file__).parents[2] / "data" / "banking77"
DEADLINE_S = 420.0
PIPELINE = str(Path(sys.executable).with_name("pipeline"))


def job(train: str, validation: str, **sections: Mapping[str, object]) -> dict[str, Any]:
    """Two layers of the embedded model on some rows of Banking77: 13 steps an epoch, three epochs."""
    values: dict[str, dict[str, object]] = {
        "model": {"config": {"num_hidden_layers": 2}},
        "data": {"train": train, "validation": validation, "max_length": 48},
        "training": {"epochs": 3, "batch_size_per_worker": 12, "learning_rate": 2e-3},
        "checkpoint": {"every": 5, "keep": 3},
        "scaling": {"workers": 2},
    }
    return {name: {**values.get(name, {}), **sections.get(name, {})} for name in {*values, *sections}}


@dataclass
class Program:
    """`pipeline` as a user runs it."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, program: str = PIPELINE) -> subprocess.Popen[str]:
        """Start it, or another program in its place, in a process group of its own."""
        return subprocess.Popen(
            [program, *arguments], cwd=self.folder, env={**os.environ, **self.environ}, text=True,
            start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, status: int = 0, program: str = PIPELINE) -> subprocess.CompletedProcess[str]:
        """Run it to its end, which must have that exit status."""
        process = self.start(*arguments, program=program)
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == status, f"exit status {process.returncode}\n{out[-3000:]}\n{err[-6000:]}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def write(self, name: str, values: Mapping[str, object]) -> str:
        """A configuration file; its name."""
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(values)))
        return f"{name}.yaml"


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 307 training rows (which nothing divides) and 101 validation rows of ten classes."""
    import csv

    folder = tmp_path_factory.mktemp("rows")
    labels = json.loads((DATA / "categories.json").read_text())[:10]
    for split, source, count in (("train", "train.csv", 307), ("validation", "test.csv", 101)):
        with (DATA / source).open(newline="", encoding="utf-8") as file:
            found = [row for row in csv.DictReader(file) if row["category"] in labels]
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "category"])
            writer.writeheader()
            writer.writerows(found[number * len(found) // count] for number in range(count))
    return folder


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def program(rows: Path, data_dir: Path) -> Program:
    # Fixed, so that a test run leaves nothing in the user's folders.
    environ = {"PIPELINE_DATA_DIR": str(data_dir), "PIPELINE_CACHE_DIR": str(data_dir / "cache"), "COLUMNS": "160"}
    return Program(rows, environ)


@pytest.fixture(scope="session")
def store(data_dir: Path) -> Iterator[Store]:
    """The embedded S3 server's runs, up for the whole session."""
    with embedded_store(data_dir / "s3") as storage:
        yield open_store(storage)


@pytest.fixture(scope="session")
def unbroken(program: Program, store: Store) -> Callable[[str], Store]:
    """The run of an engine that nothing disturbed; trained once."""
    done: dict[str, Store] = {}

    def of(engine: str) -> Store:
        if engine not in done:
            name = f"unbroken-{engine}"
            values = job("train.csv", "validation.csv", run={"name": name}, data=_engine(engine))
            program.run("train", "-c", program.write(name, values))
            done[engine] = store.child(name)
        return done[engine]

    return of


def _engine(engine: str) -> dict[str, object]:
    return {"engine": engine, "train": "train.csv", "validation": "validation.csv", "max_length": 48}


def result_of(run: Store) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.read("result.json"))
    return found


def lines_of(run: Store, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.read(name).splitlines()]


def wait_for_checkpoint(run: Store, process: subprocess.Popen[str], step: int = 1) -> checkpoint.Name:
    """The first complete checkpoint of at least that step."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = [name for name in checkpoint.complete(run) if name.step >= step]
        if found:
            return found[-1]
        assert process.poll() is None, f"ended before its first checkpoint:\n{process.communicate()[1][-5000:]}"
        time.sleep(0.05)
    raise TimeoutError(f"no complete checkpoint in {run.uri} within {DEADLINE_S:g} s")


@pytest.fixture(scope="session", autouse=True)
def _clean_tokens(data_dir: Path) -> Iterator[None]:
    yield
    shutil.rmtree(data_dir / "cache", ignore_errors=True)
