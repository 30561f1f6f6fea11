"""The GPU manifest on a cluster whose node only says that it has GPUs."""

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import Cluster
from tests.e2e.lab import Lab, wait_for

pytestmark = pytest.mark.e2e_long
GPU = "nvidia.com/gpu"


@pytest.fixture
def gpu_node(cluster: Cluster) -> Iterator[str]:
    """A node labelled, tainted and with the extended resource of a GPU pool's."""
    node: str = cluster.get("nodes")[-1]["metadata"]["name"]
    patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "2"}]
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}")
    cluster.kubectl("label", "node", node, f"{GPU}.present=true")
    cluster.kubectl("taint", "node", node, f"{GPU}=present:NoSchedule")
    yield node
    cluster.kubectl("taint", "node", node, f"{GPU}-")
    cluster.kubectl("label", "node", node, f"{GPU}.present-")
    patch[0] = {"op": "remove", "path": "/status/capacity/nvidia.com~1gpu"}
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}")


def test_gpu_workers_go_to_gpu_nodes_only_and_a_missing_device_is_named(lab: Lab, gpu_node: str) -> None:
    """Requests of CPU and memory are made smaller than the manifest's; everything else is as shipped."""
    store = [document for document in lab.documents("kind") if document["kind"] != "RayJob"]
    gpu = lab.documents("gpu", config={"storage": {"path": "s3://pipeline/runs"}})
    config = next(document for document in gpu if document["kind"] == "ConfigMap")
    job = next(document for document in gpu if document["kind"] == "RayJob")
    job["spec"]["backoffLimit"] = 0
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        resources = group["template"]["spec"]["containers"][0]["resources"]
        resources["requests"] |= {"cpu": "100m", "memory": "4Gi"}
        resources["limits"] |= {"memory": "4Gi"}
    lab.apply([*store, config, job])

    def look() -> tuple[bool | None, str]:
        pods = lab.nodes_of_ray("head") + lab.nodes_of_ray("worker")
        placed = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods}
        return (True if len(placed) == 3 and all(placed.values()) else None), str(placed)

    wait_for("head and two workers to be scheduled", 60, look)
    assert {pod["spec"]["nodeName"] for pod in lab.nodes_of_ray("worker")} == {gpu_node}
    assert gpu_node not in {pod["spec"]["nodeName"] for pod in lab.nodes_of_ray("head")}

    status = lab.wait_ended(400, job["metadata"]["name"])
    assert (status["jobDeploymentStatus"], status["jobStatus"]) == ("Failed", "FAILED"), status
    last = status["message"].strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "CUDA" in last or "GPU" in last
    assert "step 1/" not in status["message"], "it trained on CPU"


@pytest.mark.parametrize("overlay", ["gpu", "gpu-cluster", "eks", "gke", "aks"])
def test_api_server_accepts_the_overlay_strictly(lab: Lab, overlay: str) -> None:
    """Against the definitions of the pinned operator, in a namespace that is there already."""
    documents = lab.documents(overlay)
    namespace = [document for document in documents if document["kind"] == "Namespace"]
    lab.apply(namespace)
    rest = [document for document in documents if document["kind"] != "Namespace"]
    call = ("apply", "--dry-run=server", "--validate=strict", "--filename", "-")
    said = lab.kubectl(*call, stdin=yaml.safe_dump_all(rest)).splitlines()
    assert len(said) == len(rest)
    assert all(line.endswith(" created (server dry run)") for line in said), said
