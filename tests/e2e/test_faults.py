"""Whatever dies, the run ends with the numbers of the undisturbed one."""

import json
import time
from typing import Any

import pytest

from tests.e2e.lab import RUN, Lab, wait_for
from tests.e2e.unbroken import CONFIG, Unbroken

STEPS = CONFIG["training"]["max_steps"]
EVERY = CONFIG["checkpoint"]["every"]
OUTAGE_SECONDS = 60


def assert_same_numbers(result: dict[str, Any], unbroken: Unbroken) -> None:
    """Metrics and the parameters behind them: a run that resumed exactly has done the same arithmetic."""
    assert result["steps"] == unbroken.result["steps"]
    assert result["eval_rows"] == unbroken.result["eval_rows"]
    for name, value in unbroken.result["metrics"].items():
        if name != "eval_seconds":
            assert result["metrics"][name] == pytest.approx(value, abs=1e-4), name


def assert_checkpoints_are_complete(lab: Lab) -> None:
    """Every listed checkpoint has all files of its manifest, and what is listed is what has a manifest."""
    listed = json.loads(lab.pipeline("runs", "show", RUN, "--json"))["checkpoints"]
    assert listed
    for name in listed:
        manifest = json.loads(lab.read(f"{name}/manifest.json"))
        stored = {key.split("/", 3)[3] for key in lab.keys(f"runs/trial/{name}/")}
        assert set(manifest["files"]) <= stored, name


def first_line(lab: Lab, attempt: int, seconds: float) -> dict[str, Any]:
    """The first step of an attempt, as soon as its metrics are in storage."""

    def look() -> tuple[dict[str, Any] | None, str]:
        name = f"metrics/attempt-{attempt:03d}.jsonl"
        if f"runs/trial/{name}" not in lab.keys("runs/trial/metrics/"):
            return None, f"no {name}, RayJob {lab.status()}"
        return lab.lines(name)[0], ""

    return wait_for(f"the first step of attempt {attempt}", seconds, look)


@pytest.mark.e2e
def test_worker_loss_then_store_outage_change_no_number(lab: Lab, unbroken: Unbroken, figure: Any) -> None:
    """A worker is deleted at once; after the run has gone on, its store stops answering for a minute."""
    lab.apply(lab.documents(config=CONFIG))
    with lab.forwarded():
        step = lab.wait_checkpoint(300, newest_step=STEPS - EVERY)
        worker = lab.nodes_of_ray("worker")[0]["metadata"]["name"]
        killed = time.time()
        lab.kubectl("delete", "pod", worker, "--force", "--grace-period=0")
        resumed = first_line(lab, 2, 300)
        figure("from a worker's loss to the next step", resumed["time"] - killed)
        # Not always one of every EVERY steps: a pod that is told of its end in time saves once more.
        assert step < resumed["step"] <= STEPS

        store = lab.pods("app=object-store")
        lab.signal(store, "STOP")
        time.sleep(OUTAGE_SECONDS)
        lab.signal(store, "CONT")

        lab.wait_succeeded(600)
        result = json.loads(lab.read("result.json"))
        assert result["attempts"] == 2
        assert result["resumed_from_step"] == resumed["step"] - 1 >= step > 0
        assert_same_numbers(result, unbroken)
        assert_checkpoints_are_complete(lab)
        newest = [line for line in lab.lines("metrics/attempt-002.jsonl") if "learning_rate" in line]
        assert newest[-1]["time"] > killed + OUTAGE_SECONDS / 2, "the store was away after the last step only"


@pytest.mark.e2e
def test_head_loss_is_resumed_from_storage_and_leaves_nothing_running(
    lab: Lab, unbroken: Unbroken, figure: Any
) -> None:
    lab.apply(lab.documents(config=CONFIG, manifest={"spec": {"ttlSecondsAfterFinished": 5}}))
    with lab.forwarded():
        step = lab.wait_checkpoint(300, newest_step=STEPS - EVERY)
        head = lab.nodes_of_ray("head")[0]["metadata"]["name"]
        killed = time.time()
        lab.kubectl("delete", "pod", head, "--force", "--grace-period=0")
        figure("from the head's loss to the next step", first_line(lab, 2, 400)["time"] - killed)
        lab.wait_succeeded(600)
        result = json.loads(lab.read("result.json"))
        assert result["resumed_from_step"] >= step
        assert_same_numbers(result, unbroken)
        assert_checkpoints_are_complete(lab)

    def look() -> tuple[bool | None, str]:
        running = [pod["metadata"]["name"] for pod in lab.pods() if pod["status"]["phase"] in ("Running", "Pending")]
        left = [name for name in running if not name.startswith("object-store")]
        clusters = lab.cluster.get("rayclusters", namespace=lab.namespace)
        return (True if not left and not clusters else None), f"pods {left}, {len(clusters)} RayClusters"

    wait_for("everything of the finished job to be gone", 120, look)


@pytest.mark.e2e
def test_attempt_that_was_frozen_overwrites_nothing_of_a_newer_one(lab: Lab, unbroken: Unbroken) -> None:
    """All processes of a first job are stopped, a second job finishes the run, and the first goes on."""
    lab.apply(lab.documents(config=CONFIG))
    with lab.forwarded():
        lab.wait_checkpoint(300, newest_step=STEPS - EVERY)
        frozen = lab.nodes_of_ray("head") + lab.nodes_of_ray("worker")
        lab.signal(frozen, "STOP")
        second = [document for document in lab.documents() if document["kind"] == "RayJob"]
        second[0]["metadata"]["name"] = "second"
        lab.apply(second)
        lab.wait_succeeded(600, "second")
        result = lab.read("result.json")
        parts = {key: lab.read(key.removeprefix("runs/trial/")) for key in lab.keys("runs/trial/metrics/attempt-002")}
        checkpoints = json.loads(lab.pipeline("runs", "show", RUN, "--json"))["checkpoints"]
        assert json.loads(result)["attempts"] == 2
        assert_same_numbers(json.loads(result), unbroken)

        lab.signal(frozen, "CONT")
        status = lab.wait_ended(600)
        assert lab.read("result.json") == result
        assert {key: lab.read(key.removeprefix("runs/trial/")) for key in parts} == parts
        assert json.loads(lab.pipeline("runs", "show", RUN, "--json"))["checkpoints"] == checkpoints
        assert_checkpoints_are_complete(lab)
        # It is told that it has been overtaken, or its cluster was lost and its retry finds the run finished.
        assert status["jobDeploymentStatus"] in ("Complete", "Failed")


@pytest.mark.e2e_long
def test_submitter_loss_leaves_the_run_alone(lab: Lab, unbroken: Unbroken) -> None:
    lab.apply(lab.documents(config=CONFIG))
    with lab.forwarded():
        lab.wait_checkpoint(300, newest_step=STEPS - EVERY)
        submitter = lab.pods("job-name=trial")[0]["metadata"]["name"]
        lab.kubectl("delete", "pod", submitter, "--force", "--grace-period=0")
        lab.wait_succeeded(600)
        result = json.loads(lab.read("result.json"))
        assert (result["attempts"], result["resumed_from_step"]) == (1, 0)
        assert_same_numbers(result, unbroken)


@pytest.mark.e2e_long
def test_drained_node_uses_its_grace_period_to_save(lab: Lab, unbroken: Unbroken, figure: Any) -> None:
    """A worker's node is drained: what was done since the last checkpoint is all that is done again."""
    lab.apply(lab.documents(config=CONFIG))
    with lab.forwarded():
        lab.wait_checkpoint(300, newest_step=STEPS - EVERY)
        heads = {pod["spec"]["nodeName"] for pod in lab.nodes_of_ray("head")}
        worker = next(pod for pod in lab.nodes_of_ray("worker") if pod["spec"]["nodeName"] not in heads)
        node = worker["spec"]["nodeName"]
        drained = time.time()
        try:
            # Its workers alone: the store of the trial would take its data along, which no real one does.
            lab.cluster.kubectl(
                *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"),
                *("--pod-selector=ray.io/node-type=worker",),
                timeout=150,
            )
            figure("from a node's drain to its pods' end", time.time() - drained)
            figure("from a node's drain to the next step", first_line(lab, 2, 400)["time"] - drained)
            lab.wait_succeeded(600)
        finally:
            lab.cluster.kubectl("uncordon", node)
        before = [line["step"] for line in lab.lines("metrics/attempt-001.jsonl") if "learning_rate" in line]
        result = json.loads(lab.read("result.json"))
        repeated = max(before) - result["resumed_from_step"]
        print(f"steps done again after the drain: {repeated}")
        assert repeated <= EVERY
        assert_same_numbers(result, unbroken)
