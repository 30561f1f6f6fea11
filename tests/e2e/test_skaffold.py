"""Skaffold, the real program, as a user types it."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e import images
from tests.e2e.cluster import NAME, Cluster
from tests.e2e.images import ROOT
from tests.e2e.lab import Lab

pytestmark = pytest.mark.e2e_long


@pytest.fixture
def shipped(cluster: Cluster) -> Iterator[Lab]:
    """The namespace of the shipped manifests, emptied before and after."""
    lab = Lab(cluster, "pipeline")
    cluster.kubectl("delete", "namespace", lab.namespace, "--ignore-not-found", timeout=180)
    yield lab
    lab.delete()


def test_skaffold_run_with_the_kind_profile_ends_with_a_finished_run(cluster: Cluster, shipped: Lab) -> None:
    skaffold = images.programs(cluster.tools, "skaffold")[0] / "skaffold"
    cluster.kubectl("config", "use-context", f"kind-{NAME}")
    environment = {"SKAFFOLD_UPDATE_CHECK": "false", "SKAFFOLD_INTERACTIVE": "false"}
    cluster.tools.environment |= environment
    cluster.tools.run(str(skaffold), "run", "-p", "kind", cwd=ROOT, timeout=1800)
    status = shipped.status()
    assert (status["jobDeploymentStatus"], status["jobStatus"]) == ("Complete", "SUCCEEDED")
    with shipped.forwarded():
        assert json.loads(shipped.read("result.json"))["status"] == "finished"
    job = cluster.get("rayjob", "trial", namespace="pipeline")[0]["spec"]
    built = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    assert built != "pipeline:kind", "Skaffold did not set the image in the RayJob"
    assert job["submitterPodTemplate"]["spec"]["containers"][0]["image"] == built


def test_gpu_overlay_gets_the_built_image_everywhere(cluster: Cluster) -> None:
    """Rendered only: there is no registry here to push to."""
    skaffold = images.programs(cluster.tools, "skaffold")[0] / "skaffold"
    call = (str(skaffold), "render", "--digest-source=tag", "--default-repo=registry.invalid/team", "--offline=true")
    shown = cluster.tools.run(*call, cwd=ROOT, timeout=300).stdout.decode()
    found = [line.split("image: ")[1] for line in shown.splitlines() if "image: " in line]
    assert len(found) == 3
    assert all(image.startswith("registry.invalid/team/") for image in found), found
