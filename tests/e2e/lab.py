"""One test's namespace: an overlay applied in it, looked at and disturbed, its store read from outside the cluster."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import boto3
import pytest
import yaml
from botocore.exceptions import BotoCoreError, ClientError

from tests.e2e.cluster import ROOT, Cluster
from tests.e2e.command import CommandError

Value = TypeVar("Value")
JOB = "trial"
BUCKET = "pipeline"
RUN = f"s3://{BUCKET}/runs/{JOB}"
KEYS = {"AWS_ACCESS_KEY_ID": "trial-key", "AWS_SECRET_ACCESS_KEY": "trial-secret", "AWS_REGION": "us-east-1"}
TERMINAL = ("Complete", "Failed", "ValidationFailed")


def wait_for(what: str, seconds: float, look: Callable[[], tuple[Value | None, str]]) -> Value:
    """Look every second until there is a value; after `seconds`, fail with the last state seen."""
    deadline = time.monotonic() + seconds
    while True:
        value, state = look()
        if value is not None:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s for {what}; last seen: {state}")
        time.sleep(1)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings, with the values of `above` over those of `below`."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


class Lab:
    """A namespace with the objects of an overlay. `manifest` changes RayJobs, `config` the job's configuration."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.applied_at = 0.0
        self._port: int | None = None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl in this namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin)

    def documents(
        self, overlay: str = "kind", *, config: dict[str, Any] | None = None, manifest: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """An overlay's objects in this namespace, with the image under test."""
        rendered = self.cluster.kubectl("kustomize", str(ROOT / "manifests/overlays" / overlay))
        text = re.sub(r"image: (registry\.example\.com/)?pipeline:\S+", f"image: {self.cluster.image}", rendered)
        found = []
        for document in yaml.safe_load_all(text):
            if document["kind"] == "Namespace":
                document["metadata"]["name"] = self.namespace
                document["metadata"]["labels"]["pipeline-e2e"] = "test"
            else:
                document["metadata"]["namespace"] = self.namespace
            if document["kind"] == "ConfigMap" and config:
                changed = merged(yaml.safe_load(document["data"]["config.yaml"]), config)
                document["data"]["config.yaml"] = yaml.safe_dump(changed)
            found.append(merged(document, manifest) if document["kind"] == "RayJob" and manifest else document)
        return found

    def apply(self, documents: list[dict[str, Any]]) -> None:
        """Apply as a user would, with strict validation; the first call's time counts as the start."""
        self.applied_at = self.applied_at or time.time()
        self.kubectl("apply", "--validate=strict", "--filename", "-", stdin=yaml.safe_dump_all(documents))

    def status(self, job: str = JOB) -> dict[str, Any]:
        """The RayJob's status; empty at first."""
        found: dict[str, Any] = self.cluster.get("rayjob", job, namespace=self.namespace)[0].get("status", {})
        return found

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Pods that are not being deleted."""
        arguments = [f"--selector={selector}"] if selector else []
        found = self.cluster.get("pods", *arguments, namespace=self.namespace)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def nodes_of_ray(self, kind: str) -> list[dict[str, Any]]:
        """Pods of the `head` or of `worker`s."""
        return self.pods(f"ray.io/node-type={kind}")

    def wait_ended(self, seconds: float, job: str = JOB) -> dict[str, Any]:
        """The status of a RayJob that KubeRay does no more for."""

        def look() -> tuple[dict[str, Any] | None, str]:
            status = self.status(job)
            return (status if status.get("jobDeploymentStatus") in TERMINAL else None), _words(status)

        return wait_for(f"RayJob {job} to end", seconds, look)

    def wait_succeeded(self, seconds: float, job: str = JOB) -> dict[str, Any]:
        """The status, which is to be Complete and SUCCEEDED."""
        status = self.wait_ended(seconds, job)
        assert (status["jobDeploymentStatus"], status["jobStatus"]) == ("Complete", "SUCCEEDED"), _words(status)
        return status

    def wait_checkpoint(self, seconds: float, attempt: int = 1, newest_step: int = 10**9) -> int:
        """Step of the newest complete checkpoint of an attempt, which is to be at most `newest_step`."""

        def look() -> tuple[int | None, str]:
            keys = self.keys("runs/trial/checkpoint-")
            names = [key.split("/")[2] for key in keys if key.endswith("/manifest.json")]
            steps = [int(name.split("-")[1]) for name in names if int(name.rpartition("-a")[2]) == attempt]
            status = self.status()
            if status.get("jobDeploymentStatus") in TERMINAL and not steps:
                raise AssertionError(f"ended before a checkpoint: {_words(status)}")
            return (max(steps) if steps else None), f"{len(keys)} files of checkpoints, {_words(status)}"

        step = wait_for(f"a checkpoint of attempt {attempt}", seconds, look)
        assert step <= newest_step, f"the run was too quick to be disturbed: step {step}"
        return step

    def store(self) -> Any:
        """A client of the store in the cluster, through a forwarded port."""
        return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self._port}", region_name="us-east-1",
                            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
                            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"])  # fmt: skip

    def keys(self, prefix: str) -> list[str]:
        """Names of objects; none while the store is not there yet."""
        try:
            pages = self.store().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
            return [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        except (BotoCoreError, ClientError):
            return []

    def read(self, name: str) -> str:
        """An object of the run."""
        body: bytes = self.store().get_object(Bucket=BUCKET, Key=f"runs/trial/{name}")["Body"].read()
        return body.decode()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """A file of JSON lines of the run."""
        return [json.loads(line) for line in self.read(name).splitlines()]

    def pipeline(self, *arguments: str) -> str:
        """What the `pipeline` command printed, run outside the cluster."""
        environment = {**os.environ, **KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}"}
        call = [sys.executable, "-m", "pipeline", *arguments]
        done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
        assert done.returncode == 0, f"pipeline {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}"
        return done.stdout

    @contextmanager
    def forwarded(self) -> Iterator[None]:
        """Forward a local port to the store, from its first readiness on."""
        self.kubectl("rollout", "status", "deployment/object-store", "--timeout=120s")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        call = ["kubectl", "--namespace", self.namespace, "port-forward", "service/object-store", f"{self._port}:8333"]
        forward = subprocess.Popen(
            ["env", *call], env=self.cluster.tools.variables(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for("the forwarded port", 30, self._answers)
            yield
        finally:
            forward.terminate()
            forward.wait()

    def _answers(self) -> tuple[bool | None, str]:
        with socket.socket() as client:
            client.settimeout(1)
            return (True if client.connect_ex(("127.0.0.1", self._port or 0)) == 0 else None), f"port {self._port}"

    def processes(self, pod: dict[str, Any]) -> tuple[str, list[str]]:
        """The node of a pod and the ids, as the node sees them, of all processes of its first container."""
        node = pod["spec"]["nodeName"]
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        shown = self.cluster.on_node(node, "ctr", "--namespace", "k8s.io", "task", "ps", container)
        return node, [line.split()[0] for line in shown.splitlines()[1:]]

    def signal(self, pods: list[dict[str, Any]], name: str) -> None:
        """Send a signal such as STOP to all processes of pods, from their node: in a pod, the first one ignores it."""
        if not self.cluster.nodes:
            pytest.skip(
                "stopping the processes of a pod needs its node, which a cluster given by KUBECONFIG keeps closed"
            )
        for pod in pods:
            for _ in range(2):  # once more, for what was started between looking and signalling
                node, ids = self.processes(pod)
                # One that has ended meanwhile is none to fail for.
                self.cluster.on_node(node, "sh", "-c", f"kill -{name} {' '.join(ids)} 2> /dev/null || true")

    def delete(self) -> None:
        """Stop everything of the test at once; what remains of the namespace goes by itself."""
        owners = "rayjobs,rayclusters,jobs,deployments"
        self.kubectl("delete", owners, "--all", "--wait=false", "--ignore-not-found")
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--ignore-not-found")
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false", "--ignore-not-found")

    def dump(self) -> str:
        """Pods, events, logs and the RayJob's status, for the report of a failure."""
        parts = []
        for title, call in (
            ("RayJobs", ("get", "rayjobs", "--output", "jsonpath={range .items[*]}{.status}{'\\n'}{end}")),
            ("pods", ("get", "pods", "--output", "wide")),
            ("events", ("get", "events", "--sort-by=.lastTimestamp")),
        ):
            parts += [f"--- {title}", self._said(*call)[-6000:]]
        for pod in self.cluster.get("pods", namespace=self.namespace):
            name = pod["metadata"]["name"]
            parts += [f"--- log of {name}", self._said("logs", name, "--all-containers", "--tail=60")[-8000:]]
        return "\n".join(parts)

    def _said(self, *call: str) -> str:
        try:
            return self.kubectl(*call)
        except CommandError as error:
            return str(error)


def _words(status: dict[str, Any]) -> str:
    keys = ("jobDeploymentStatus", "jobStatus", "reason", "failed", "message")
    return ", ".join(f"{key} {status[key]!r}" for key in keys if key in status) or "no status yet"


def exported(lab: Lab, folder: Path) -> Path:
    """The best checkpoint's model, as a user outside the cluster gets it."""
    lab.pipeline("runs", "export", RUN, str(folder))
    return folder
