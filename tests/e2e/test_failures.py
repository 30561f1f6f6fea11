"""What cannot work ends, soon, and says why."""

import time
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.lab import JOB, Lab, wait_for

SECONDS_TO_FAIL = 60


def started(lab: Lab) -> float:
    """When the last of the head and the workers began to run; 0 before that."""
    pods = lab.nodes_of_ray("head") + lab.nodes_of_ray("worker")
    states = [status["state"] for pod in pods for status in pod["status"].get("containerStatuses", [])]
    times = [state["running"]["startedAt"] for state in states if "running" in state]
    return max((datetime.fromisoformat(text).timestamp() for text in times), default=0.0)


@pytest.mark.e2e
def test_wrong_configuration_ends_failed_with_its_one_line_error(lab: Lab, figure: Any) -> None:
    lab.apply(lab.documents(config={"training": {"epochs": 0}}))
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    messages: list[str] = []

    def look() -> tuple[dict[str, Any] | None, str]:
        status = lab.status()
        name = status.get("rayClusterName", "")
        if name and name not in ends:
            starts[name] = started(lab) or starts.get(name, 0.0)
        if status.get("jobStatus") == "FAILED" and name not in ends:
            ends[name] = time.time()
            messages.append(status.get("message", ""))
        assert status.get("jobStatus") != "SUCCEEDED", "a wrong configuration was taken for a success"
        return (status if status.get("jobDeploymentStatus") == "Failed" else None), str(status)

    status = wait_for("the RayJob to end Failed", 600, look)
    attempts = lab.cluster.get("rayjob", JOB, namespace=lab.namespace)[0]["spec"]["backoffLimit"] + 1
    assert (status["jobStatus"], status["reason"], status["failed"]) == ("FAILED", "AppFailed", attempts)
    assert "error: training.epochs: found 0" in status["message"]
    assert "Traceback" not in status["message"]
    assert len(ends) == attempts
    for name, end in ends.items():
        figure(f"wrong configuration, from the pods' start to its error ({name})", end - starts[name])
        assert end - starts[name] < SECONDS_TO_FAIL, name
    assert all("error: training.epochs: found 0" in message for message in messages)


@pytest.mark.e2e_long
def test_missing_image_ends_within_its_deadlines_and_says_why(lab: Lab, figure: Any) -> None:
    deadline = 40
    documents = lab.documents(manifest={"spec": {"preRunningDeadlineSeconds": deadline}})
    job = next(document for document in documents if document["kind"] == "RayJob")
    for group in (job["spec"]["rayClusterSpec"]["headGroupSpec"], *job["spec"]["rayClusterSpec"]["workerGroupSpecs"]):
        group["template"]["spec"]["containers"][0]["image"] = "registry.invalid/pipeline:no-such-tag"
    began = time.time()
    lab.apply(documents)
    attempts = job["spec"]["backoffLimit"] + 1
    status = lab.wait_ended(attempts * deadline + 90)
    figure("a missing image, until the RayJob has failed", time.time() - began)
    assert (status["jobDeploymentStatus"], status["reason"]) == ("Failed", "PreRunningDeadlineExceeded")
    said = status["message"] + " ".join(
        event["message"] for event in lab.cluster.get("events", namespace=lab.namespace) if "message" in event
    )
    assert "registry.invalid/pipeline:no-such-tag" in said
