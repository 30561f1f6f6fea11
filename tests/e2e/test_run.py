"""The whole chain, undisturbed: image, manifests, operator, Ray, Accelerate, storage."""

import json
from typing import Any

import pytest

from tests.e2e.unbroken import CONFIG, Unbroken

pytestmark = pytest.mark.e2e
VALIDATION_ROWS = 3080
STEPS = CONFIG["training"]["max_steps"]


def test_rayjob_is_complete_and_succeeded(unbroken: Unbroken) -> None:
    assert (unbroken.status["jobDeploymentStatus"], unbroken.status["jobStatus"]) == ("Complete", "SUCCEEDED")
    assert unbroken.status.get("failed", 0) == 0


def test_workers_are_in_different_pods_and_ray_agrees_with_accelerate(unbroken: Unbroken) -> None:
    workers = sorted(unbroken.result["workers"], key=lambda worker: worker["rank"])
    assert [(w["rank"], w["local_rank"], w["world_size"], w["device"]) for w in workers] == [
        (0, 0, 2, "cpu"),
        (1, 0, 2, "cpu"),
    ]
    hosts = [worker["host"] for worker in workers]
    assert len(set(hosts)) == 2
    assert set(hosts) <= set(unbroken.pods)
    assert len({unbroken.pods[host]["spec"]["nodeName"] for host in hosts}) == 2
    agreed = [text for text in unbroken.logs_without_pods.values() if "Ray and Accelerate agree" in text]
    assert len(agreed) == 2


def test_storage_holds_result_metrics_and_complete_checkpoints(unbroken: Unbroken) -> None:
    result = unbroken.result
    assert (result["status"], result["steps"], result["eval_rows"]) == ("finished", STEPS, VALIDATION_ROWS)
    assert result["attempts"] == 1
    steps = [line["step"] for line in unbroken.metrics if "learning_rate" in line]
    assert steps == list(range(1, STEPS + 1))
    evaluations = [line for line in unbroken.metrics if "eval_accuracy" in line]
    assert evaluations[-1]["eval_accuracy"] == result["metrics"]["eval_accuracy"]
    assert result["last_checkpoint"] in unbroken.checkpoints


def test_run_is_read_back_from_outside_the_cluster(unbroken: Unbroken) -> None:
    shown: dict[str, Any] = json.loads(unbroken.shown)
    assert shown["result"]["metrics"] == unbroken.result["metrics"]
    assert sorted(shown["checkpoints"]) == unbroken.checkpoints
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(unbroken.model)
    assert model.config.num_labels == 77
    assert model.config.num_hidden_layers == 2


def test_every_pod_is_admitted_under_the_restricted_standard(unbroken: Unbroken) -> None:
    assert unbroken.namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    kinds = {pod["metadata"]["labels"].get("ray.io/node-type", "other") for pod in unbroken.pods.values()}
    assert {"head", "worker"} <= kinds
    assert any("job-name" in pod["metadata"]["labels"] for pod in unbroken.pods.values()), "no submitter was seen"
    refused = [event["message"] for event in unbroken.events if "violates PodSecurity" in event.get("message", "")]
    assert refused == []


def test_logs_outlive_their_pods(unbroken: Unbroken) -> None:
    assert len(unbroken.logs_without_pods) == 2
    saved = f"saved {unbroken.result['last_checkpoint']}"
    assert any(saved in text for text in unbroken.logs_without_pods.values())
