"""The manifests are what their folders make, agree with the code, and keep the rules of docs/manifests.md."""

import importlib.metadata
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import settings
from pipeline.errors import UserError

MANIFESTS = Path(__file__).parents[2] / "manifests"
JOBS = ("kind", "gpu", "eks", "gke", "aks")
DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"


@cache
def objects(overlay: str) -> dict[str, dict[str, Any]]:
    """The objects of an overlay, by kind and name."""
    call = ["kubectl", "kustomize", str(MANIFESTS / "overlays" / overlay)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in yaml.safe_load_all(done.stdout)}


def one(overlay: str, kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = [item for name, item in objects(overlay).items() if name.startswith(f"{kind}/")]
    return found


def pod_specs(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pod specs of head, workers and submitter."""
    spec = job["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    found = {"head": cluster["headGroupSpec"]["template"]["spec"]}
    found |= {group["groupName"]: group["template"]["spec"] for group in cluster["workerGroupSpecs"]}
    if "submitterPodTemplate" in spec:
        found["submitter"] = spec["submitterPodTemplate"]["spec"]
    return found


def test_rendered_files_are_what_the_folders_make() -> None:
    call = [sys.executable, str(MANIFESTS / "render.py"), "--check"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_raycluster_is_the_cluster_of_the_rayjob() -> None:
    assert one("gpu-cluster", "RayCluster")["spec"] == one("gpu", "RayJob")["spec"]["rayClusterSpec"]


@pytest.mark.parametrize("overlay", JOBS)
def test_rayjob_ends_and_retries_by_rule(overlay: str) -> None:
    job = one(overlay, "RayJob")
    spec = job["spec"]
    assert spec["backoffLimit"] >= 2
    assert spec["activeDeadlineSeconds"] > spec["preRunningDeadlineSeconds"] > 0
    assert spec["shutdownAfterJobFinishes"]
    assert spec["ttlSecondsAfterFinished"] > 0
    assert "deletionStrategy" not in spec
    assert "runtimeEnvYAML" not in spec
    assert spec["submissionMode"] == "K8sJobMode"
    assert spec["submitterConfig"]["backoffLimit"] >= 2
    assert len(job["metadata"]["name"]) <= 47


@pytest.mark.parametrize("overlay", [*JOBS, "gpu-cluster"])
def test_one_pinned_image_with_the_ray_that_kuberay_is_told(overlay: str) -> None:
    job = one(overlay, "RayCluster" if overlay == "gpu-cluster" else "RayJob")
    images = {container["image"] for spec in pod_specs(job).values() for container in spec["containers"]}
    assert len(images) == 1
    assert not images.pop().endswith((":latest", "pipeline"))
    cluster = job["spec"].get("rayClusterSpec", job["spec"])
    assert cluster["rayVersion"] == importlib.metadata.version("ray")
    assert cluster["authOptions"] == {"mode": "token"}


@pytest.mark.parametrize("overlay", [*JOBS, "gpu-cluster"])
def test_pods_meet_the_restricted_standard_and_have_time_to_save(overlay: str) -> None:
    job = one(overlay, "RayCluster" if overlay == "gpu-cluster" else "RayJob")
    for name, spec in pod_specs(job).items():
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not spec["automountServiceAccountToken"], name
        assert not spec["enableServiceLinks"], name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True), name
            resources = container["resources"]
            assert resources["requests"]["memory"] == resources["limits"]["memory"], name
            drain = {item["name"]: item["value"] for item in container.get("env", [])}.get(DRAIN)
            assert name == "submitter" or spec["terminationGracePeriodSeconds"] >= int(drain) + 15, name  # type: ignore[arg-type]


@pytest.mark.parametrize("overlay", JOBS)
def test_cluster_holds_the_workers_of_its_configuration(overlay: str) -> None:
    cluster = one(overlay, "RayJob")["spec"]["rayClusterSpec"]
    config = yaml.safe_load(one(overlay, "ConfigMap")["data"]["config.yaml"])
    (group,) = cluster["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    head = cluster["headGroupSpec"]["rayStartParams"]
    assert (head["num-cpus"], head["num-gpus"]) == ("0", "0")
    assert group["replicas"] * int(group["rayStartParams"]["num-cpus"]) >= config["scaling"]["workers"] + 1
    if overlay != "kind":
        container = group["template"]["spec"]["containers"][0]
        assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == group["rayStartParams"]["num-gpus"]
        assert group["replicas"] * int(group["rayStartParams"]["num-gpus"]) >= config["scaling"]["workers"]
        assert config["scaling"]["use_gpu"] is True
        assert group["template"]["spec"]["nodeSelector"]
        assert group["template"]["spec"]["tolerations"]
        assert "affinity" in cluster["headGroupSpec"]["template"]["spec"]


def test_configuration_of_the_trial_is_valid() -> None:
    config = settings.loads(one("kind", "ConfigMap")["data"]["config.yaml"], "kind")
    assert config.storage.path == "s3://pipeline/runs"


def test_only_the_bucket_has_to_be_changed_in_the_shipped_configuration() -> None:
    text = one("gpu", "ConfigMap")["data"]["config.yaml"]
    with pytest.raises(UserError) as refused:
        settings.loads(text, "config.yaml")
    assert len(refused.value.problems) == 1
    assert "storage.path" in refused.value.problems[0]
    assert "REPLACE_ME" in refused.value.problems[0]
    settings.loads(text.replace("REPLACE_ME", "my-bucket"), "config.yaml")


def test_credentials_come_from_a_secret_or_from_the_pods_identity() -> None:
    for overlay in JOBS:
        specs = pod_specs(one(overlay, "RayJob"))
        sources = [container.get("envFrom") for name in ("head", "workers") for container in specs[name]["containers"]]
        if overlay == "eks":
            assert sources == [None, None]
            assert "eks.amazonaws.com/role-arn" in one("eks", "ServiceAccount")["metadata"]["annotations"]
        else:
            assert sources == [[{"secretRef": {"name": "pipeline-storage"}}]] * 2, overlay


@pytest.mark.parametrize("overlay", ["gpu", "gpu-cluster", "eks", "gke", "aks"])
def test_spot_component_lets_workers_on_spot_nodes_and_keeps_the_head_off(overlay: str, tmp_path: Path) -> None:
    base, spot = (os.path.relpath(MANIFESTS / path, tmp_path) for path in (f"overlays/{overlay}", "components/spot"))
    kustomization = {"kind": "Kustomization", "resources": [base], "components": [spot]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    call = ["kubectl", "kustomize", str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    kind = "RayCluster" if overlay == "gpu-cluster" else "RayJob"
    (job,) = [item for item in yaml.safe_load_all(done.stdout) if item["kind"] == kind]
    specs = pod_specs(job)
    tolerated = {toleration["key"] for toleration in specs["workers"]["tolerations"]}
    assert tolerated == {"nvidia.com/gpu", "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"}
    assert "tolerations" not in specs["head"]
    affinity = specs["head"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    before = pod_specs(one(overlay, kind))["head"]["affinity"]["nodeAffinity"]
    (kept,) = before["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][: len(kept["matchExpressions"])] == kept["matchExpressions"]
    assert {expression["key"] for expression in term["matchExpressions"][len(kept["matchExpressions"]) :]} == {
        "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "eks.amazonaws.com/capacityType",
    }  # fmt: skip


def test_the_overlay_of_ones_own_in_the_docs_renders_with_its_own_image_and_configuration(tmp_path: Path) -> None:
    text = (MANIFESTS.parent / "docs" / "manifests.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^<!-- test: overlay -->\n```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    snippet = snippet.replace("PATH/manifests", os.path.relpath(MANIFESTS, tmp_path))
    (tmp_path / "kustomization.yaml").write_text(snippet)
    (tmp_path / "config.yaml").write_text("run: {name: own}\n")
    call = ["kubectl", "kustomize", str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    found = {item["kind"]: item for item in yaml.safe_load_all(done.stdout)}
    assert found["ConfigMap"]["data"] == {"config.yaml": "run: {name: own}\n"}
    specs = pod_specs(found["RayJob"])
    assert {spec["containers"][0]["image"] for spec in specs.values()} == {"ghcr.io/acme/pipeline:0.1.0"}
    volumes = specs["head"]["volumes"]
    names = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    assert names == [found["ConfigMap"]["metadata"]["name"]]


# CPUs and GiB of the machines that the overlays name, less a tenth of the CPUs and what kubelet and daemons keep.
MACHINES = {"g6.2xlarge": (8, 32)}


@pytest.mark.parametrize("overlay", ["gpu", "eks", "gke", "aks"])
def test_a_worker_fits_a_machine_of_8_cpus_and_32_gib_beside_its_own_services(overlay: str) -> None:
    spec = pod_specs(one(overlay, "RayJob"))["workers"]
    machine = spec.get("nodeSelector", {}).get("node.kubernetes.io/instance-type", "g6.2xlarge")
    cpus, memory = MACHINES[machine]
    requests = spec["containers"][0]["resources"]["requests"]
    assert int(requests["cpu"]) <= 0.9 * cpus
    assert int(requests["memory"].removesuffix("Gi")) <= memory - 6
