"""python -m bench: both engines against a bare loop, in turns; prints the table and writes bench/results.json."""

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.padding import padding_ratio
from pipeline.config import Config

STEPS, ROUNDS = 40, 3
GOALS = {
    "rows_per_second_vs_bare_loop": 0.9,
    "rows_per_second_vs_bare_loop_torch_engine": 0.9,
    "padding_ratio": 0.06,
    "data_wait_share": 0.05,
}
COMMON = [f"training.max_steps={STEPS}", "training.epochs=1", "data.validation=null"]
# Rows of an optimizer step of the default job.
GLOBAL_ROWS = Config().scaling.workers * Config().training.batch_size_per_worker


def _bare() -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "bench.bare", *COMMON]
    started = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("the bare loop failed")
    return float(json.loads(outputs[0].splitlines()[-1])["rows_per_second"])


def _engine(engine: str, folder: str, number: int) -> tuple[float, float]:
    name = f"{engine}-{number}"
    program = str(Path(sys.executable).with_name("pipeline"))
    arguments = [*COMMON, f"run.name={name}", f"data.engine={engine}", f"storage.path={folder}"]
    subprocess.run([program, "train", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (Path(folder) / name / "metrics.jsonl").read_text().splitlines()]
    lines = lines[STEPS // 4 :]
    seconds = [GLOBAL_ROWS / line["samples_per_second"] for line in lines]
    waited = sum(line["data_wait_share"] * spent for line, spent in zip(lines, seconds, strict=True))
    return GLOBAL_ROWS * len(lines) / sum(seconds), waited / sum(seconds)


def _entry(name: str, values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "goal": GOALS[name]}


def main() -> None:
    """Measure in turns, so that what else the machine does meets all of them."""
    ratios: dict[str, list[float]] = {name: [] for name in GOALS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            bare = _bare()
            for engine in ("ray", "torch"):
                speed, waited = _engine(engine, folder, number)
                suffix = "" if engine == "ray" else "_torch_engine"
                ratios[f"rows_per_second_vs_bare_loop{suffix}"].append(speed / bare)
                if engine == "ray":
                    ratios["data_wait_share"].append(waited)
            print(f"round {number + 1} of {ROUNDS}: bare loop {bare:.1f} rows/s", file=sys.stderr, flush=True)
    ratios["padding_ratio"] = [padding_ratio(Config().data.bucket_batches, epoch) for epoch in range(ROUNDS)]
    machine = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
    entries = {name: _entry(name, values) for name, values in ratios.items()}
    results = {"machine": machine, "ratios": entries}
    Path("bench/results.json").write_text(json.dumps(results, indent=1) + "\n")
    table = Table("ratio", "median", "min", "max", "goal", title=machine)
    for name, entry in entries.items():
        table.add_row(name, *(f"{entry[key]:.3f}" for key in ("median", "min", "max", "goal")))
    Console().print(table)


if __name__ == "__main__":
    main()
