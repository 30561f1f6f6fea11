"""The cluster of a session: two kind nodes on which pods may run, with the pinned KubeRay operator."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import engine, images, load
from tests.e2e.command import CommandError, Tools

NAME = engine.CLUSTER
POD_SUBNET = "10.244.0.0/16"
ROOT = Path(__file__).parents[2]
OPERATOR_NAMESPACE = "kuberay-system"


@dataclass
class Cluster:
    """A running cluster. `nodes` are containers of the engine, empty for a cluster that was there before."""

    tools: Tools
    image: str
    nodes: list[str] = field(default_factory=list)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """What kubectl printed. Raises CommandError."""
        return self.tools.output(
            "kubectl", *arguments, stdin=None if stdin is None else stdin.encode(), timeout=timeout
        )

    def get(self, kind: str, *arguments: str, namespace: str = "") -> list[dict[str, Any]]:
        """Objects of a kind; empty if there are none."""
        where = ["--namespace", namespace] if namespace else []
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, *where, *arguments, "--output", "json"))
        items: list[dict[str, Any]] = found.get("items", [found])
        return items

    def on_node(self, node: str, *call: str) -> str:
        """Run a program on a node, as its root."""
        return self.tools.output("docker", "exec", "--privileged", node, *call)


def existing(tools: Tools, image: str | None) -> Cluster:
    """The cluster of KUBECONFIG, with an image that its nodes can pull. Installs the operator if there is none."""
    if not image:
        raise engine.SetupError("KUBECONFIG is set: give the image that this cluster's nodes can pull, --image=NAME")
    cluster = Cluster(tools, image)
    _install_operator(cluster)
    return cluster


def create(tools: Tools, node_image: images.NodeImage, reuse: bool) -> Cluster:
    """A new cluster in place of any of the same name; with `reuse`, that one goes on if its nodes are of this image."""
    kubeconfig = engine.cache_folder() / "kubeconfig"
    tools.environment["KUBECONFIG"] = str(kubeconfig)
    layers = load.layers_folder(tools)
    cluster = Cluster(tools, image="", nodes=[f"{NAME}-control-plane", f"{NAME}-worker"])
    # Never without being told: the engine starts nodes again that somebody killed, without their routes.
    if not (reuse and _is_there(cluster, node_image, kubeconfig)):
        delete(tools)
        settings = yaml.safe_dump(_settings(node_image, layers)).encode()
        call = ("kind", "create", "cluster", "--name", NAME, "--image", node_image.name, "--config", "-", "--retain")
        tools.run(*call, stdin=settings, timeout=300)
        if node_image.built:
            _connect(cluster)
        _load(cluster, layers, *([images.operator_image()] if node_image.built else []))
    if _tainted(cluster):
        cluster.kubectl("taint", "nodes", f"{NAME}-control-plane", "node-role.kubernetes.io/control-plane-")
    _reset_nodes(cluster)
    cluster.kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=120s", timeout=150)
    _install_operator(cluster)
    cluster.image = images.pipeline_image(tools)
    _load(cluster, layers, cluster.image)
    images.remove_old_images(tools, cluster.image)
    return cluster


def delete(tools: Tools) -> None:
    """Delete the cluster of our name, if there is one."""
    tools.run("kind", "delete", "cluster", "--name", NAME, timeout=180, check=False)


def _is_there(cluster: Cluster, node_image: images.NodeImage, kubeconfig: Path) -> bool:
    call = ("docker", "inspect", "--format", "{{.Config.Image}} {{.State.Running}}", *cluster.nodes)
    found = cluster.tools.run(*call, check=False).stdout.decode().split("\n")
    if not kubeconfig.exists() or found[:2] != [f"{node_image.name} true"] * 2:
        return False
    return cluster.tools.run("kubectl", "get", "nodes", timeout=30, check=False).returncode == 0


def _settings(node_image: images.NodeImage, layers: Path | None) -> dict[str, Any]:
    """kind's configuration."""
    mounts = [{"hostPath": str(layers), "containerPath": "/kind/layers", "readOnly": True}] if layers else []
    settings: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": role, "extraMounts": mounts} for role in ("control-plane", "worker")],
        # Kubernetes has begun to refuse hosts with version 1 of control groups, which many still have.
        "kubeadmConfigPatches": ["kind: KubeletConfiguration\nfailCgroupV1: false\ncgroupDriver: systemd\n"],
    }
    if engine.lacks_sys_resource():
        settings["featureGates"] = {"KubeletInUserNamespace": True}  # a kubelet that may not raise limits goes on
    if node_image.built:
        settings["networking"] = {"disableDefaultCNI": True, "podSubnet": POD_SUBNET}
    return settings


def _connect(cluster: Cluster) -> None:
    """The pod network that kind's own plug-in makes: a bridge-less network on each node, routes between the nodes, and
    translation of addresses for what leaves the cluster."""
    deadline = time.monotonic() + 60
    while not all("podCIDR" in node["spec"] for node in cluster.get("nodes")):
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes were given no pod addresses within a minute")
        time.sleep(0.5)
    places = {}
    for node in cluster.get("nodes"):
        address = next(item["address"] for item in node["status"]["addresses"] if item["type"] == "InternalIP")
        places[node["metadata"]["name"]] = (node["spec"]["podCIDR"], address)
    for name, (subnet, _) in places.items():
        network = {
            "cniVersion": "0.3.1",
            "name": "ptp",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "mtu": 1500,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni-ipam",
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "ranges": [[{"subnet": subnet}]],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        commands = ["mkdir -p /etc/cni/net.d", "cat > /etc/cni/net.d/10-ptp.conflist"]
        commands += [f"ip route replace {other} via {via}" for key, (other, via) in places.items() if key != name]
        commands += [f"iptables -t nat -A POSTROUTING -s {POD_SUBNET} ! -d {POD_SUBNET} -j MASQUERADE"]
        call = ("docker", "exec", "--interactive", "--privileged", name, "sh", "-ec", "\n".join(commands))
        cluster.tools.run(*call, stdin=json.dumps(network).encode())


def _tainted(cluster: Cluster) -> bool:
    taints = [taint["key"] for node in cluster.get("nodes") for taint in node["spec"].get("taints", [])]
    return "node-role.kubernetes.io/control-plane" in taints


def _reset_nodes(cluster: Cluster) -> None:
    """Undo what an interrupted test has left on a kept cluster."""
    for node in cluster.nodes:
        cluster.kubectl("uncordon", node)
    cluster.kubectl("delete", "namespaces", "--selector=pipeline-e2e=test", "--wait=false", "--ignore-not-found")


def _load(cluster: Cluster, layers: Path | None, *names: str) -> None:
    for name in names:
        if layers is not None:
            load.share(cluster.tools, layers, cluster.nodes, name)
        else:
            cluster.tools.run("kind", "load", "docker-image", "--name", NAME, name, timeout=900)


def _install_operator(cluster: Cluster) -> None:
    manifests = str(ROOT / "manifests/third-party/kuberay")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", manifests)
    call = ("wait", "deployment/kuberay-operator", "--for=condition=Available", "--timeout=180s")
    try:
        cluster.kubectl(*call, "--namespace", OPERATOR_NAMESPACE, timeout=200)
    except CommandError as error:
        pods = cluster.kubectl("describe", "pods", "--namespace", OPERATOR_NAMESPACE)
        raise RuntimeError(f"the KubeRay operator did not start: {error}\n{pods[-3000:]}") from error


def existing_is_given() -> bool:
    """Whether the caller named a cluster of their own."""
    return bool(os.environ.get("KUBECONFIG"))
