"""The undisturbed run, and all that is known about it once its pods are gone."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.lab import RUN, Lab, exported

# Enough steps after the first checkpoint for something to be broken and mended before the last.
CONFIG: dict[str, Any] = {"training": {"max_steps": 240}, "checkpoint": {"every": 40}}


@dataclass(frozen=True)
class Unbroken:
    """What a finished run has left. `pods` are those seen while it ran, by name."""

    status: dict[str, Any]
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    shown: str
    checkpoints: list[str]
    model: Path
    pods: dict[str, dict[str, Any]]
    events: list[dict[str, Any]]
    namespace: dict[str, Any]
    logs_without_pods: dict[str, str]
    seconds_to_first_step: float
    seconds: float


def finished_run(lab: Lab, model: Path) -> Unbroken:
    """Apply the kind overlay, wait for its end, look at everything, and delete the job."""
    documents = lab.documents(config=CONFIG)
    lab.apply(documents)
    with lab.forwarded():
        pods: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + 600
        while lab.status().get("jobDeploymentStatus") != "Complete":
            pods |= {pod["metadata"]["name"]: pod for pod in lab.pods() if pod["status"]["phase"] == "Running"}
            if time.monotonic() > deadline or lab.status().get("failed"):
                break
            time.sleep(2)
        status = lab.wait_succeeded(30)
        seconds = time.time() - lab.applied_at
        metrics = lab.lines("metrics.jsonl")
        names = {key.split("/")[2] for key in lab.keys("runs/trial/checkpoint-") if key.endswith("manifest.json")}
        shown = lab.pipeline("runs", "show", RUN, "--json")
        exported(lab, model)
        events = lab.cluster.get("events", namespace=lab.namespace)
        lab.kubectl("delete", "rayjob", "trial", "--timeout=90s")
        logs = {key: lab.read(key.removeprefix("runs/trial/")) for key in lab.keys("runs/trial/logs/")}
        return Unbroken(
            status=status,
            result=json.loads(lab.read("result.json")),
            metrics=metrics,
            shown=shown,
            checkpoints=sorted(names),
            model=model,
            pods=pods,
            events=events,
            namespace=lab.cluster.get("namespace", lab.namespace)[0],
            logs_without_pods=logs,
            seconds_to_first_step=min(line["time"] for line in metrics) - lab.applied_at,
            seconds=seconds,
        )
