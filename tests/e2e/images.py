"""What has to exist before a cluster can: its programs, its node image, and the pipeline's own image.

`python -m tests.e2e.images` makes all of it and nothing else.
"""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e import engine
from tests.e2e.command import CommandError, Tools

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PULL_SECONDS = 60
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# What images/Dockerfile copies for its demo target.
INPUTS = ("images", "requirements", "pyproject.toml", "README.md", "LICENSE", "pipeline", "data", "configs")
NODE_PROGRAMS = ("kubernetes", "coredns", "etcd", "kuberay", "kind")


@dataclass(frozen=True)
class NodeImage:
    """An image for kind's nodes. One that we built has no pod network and finds the operator's image in our engine."""

    name: str
    built: bool


def versions() -> dict[str, str]:
    """The settings of node/versions.sh."""
    words = " ".join(line for line in (HERE / "node/versions.sh").read_text().splitlines() if not line.startswith("#"))
    return dict(word.split("=", 1) for word in words.split())


def programs(tools: Tools, *names: str) -> list[Path]:
    """Build programs from their Go modules, or find them built; the folder of each."""
    if tools.run("go", "version", check=False).returncode != 0:
        raise engine.SetupError("Go is not on PATH: install 1.25 or later, which builds the cluster's programs")
    call = [str(HERE / "node/binaries.sh"), str(engine.cache_folder() / "bin"), *names]
    return [Path(line) for line in tools.output(*call, timeout=3600).splitlines()]


def link_programs(tools: Tools) -> None:
    """Put kind, and kubectl if the machine has none, into the folder of tools."""
    wanted = {"kind": programs(tools, "kind")[0] / "kind"}
    if tools.run("which", "kubectl", check=False).returncode != 0:
        wanted["kubectl"] = programs(tools, "kubernetes")[0] / "kubectl"
    for name, target in wanted.items():
        (tools.folder / name).unlink(missing_ok=True)
        (tools.folder / name).symlink_to(target)


def node_image(tools: Tools) -> NodeImage:
    """kindest/node where it can be pulled, else one built here: 10 to 20 minutes the first time, on two cores."""
    published = versions()["KINDEST"]
    if _has(tools, published):
        return NodeImage(published, built=False)
    names = ("image", "image.sh", "binaries.sh", "versions.sh", *(f"modules/{name}" for name in NODE_PROGRAMS))
    inputs = [path for name in names for path in (HERE / "node" / name, *sorted((HERE / "node" / name).rglob("*")))]
    tag = f"pipeline-e2e-node:{_hash([path for path in inputs if path.is_file()])}"
    if _has(tools, tag):
        return NodeImage(tag, built=True)
    try:
        tools.run("docker", "pull", "--quiet", published, timeout=PULL_SECONDS)
        return NodeImage(published, built=False)
    except (CommandError, subprocess.TimeoutExpired):
        print(f"{published} cannot be pulled here: building a node image, once", file=sys.stderr)
    tools.run(str(HERE / "node/image.sh"), str(engine.cache_folder() / "bin"), tag, timeout=3600)
    return NodeImage(tag, built=True)


def operator_image() -> str:
    """The name that manifests/third-party/kuberay uses."""
    return f"quay.io/kuberay/operator:{versions()['KUBERAY']}"


def pipeline_image(tools: Tools) -> str:
    """Build the image under test, with model and data: 3 minutes the first time, seconds after that."""
    inputs = [path for name in INPUTS for path in (ROOT / name, *sorted((ROOT / name).rglob("*")))]
    files = [path for path in inputs if path.is_file() and "__pycache__" not in path.parts]
    tag = f"pipeline:e2e-{_hash(files)}"
    if not _has(tools, tag):
        tools.run(str(HERE / "node/debian.sh"), timeout=900)
        secret = ["--secret", f"id=ca,src={CERTIFICATES}"] if CERTIFICATES.exists() else []
        tools.run(
            *("docker", "build", *secret, "--file", "images/Dockerfile", "--target", "demo"),
            *("--tag", tag, "."),
            timeout=2400,
            cwd=ROOT,
        )
    return tag


def remove_old_images(tools: Tools, keep: str) -> None:
    """Images of earlier sources, which hold disk space only where their dependencies were others."""
    names = tools.output("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "pipeline").splitlines()
    old = [name for name in names if name.startswith("pipeline:e2e-") and name != keep]
    if old:
        tools.run("docker", "rmi", *old, check=False)
    tools.run("docker", "image", "prune", "--force", check=False)
    if engine.is_our_own(tools):
        tools.run("docker", "builder", "prune", "--force", "--keep-storage", "20GB", check=False)


def _has(tools: Tools, image: str) -> bool:
    return tools.run("docker", "image", "inspect", image, check=False).returncode == 0


def _hash(files: list[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.relative_to(ROOT)}\0{os.access(path, os.X_OK)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def main() -> None:
    """Make everything that the suite would make before its cluster."""
    tools = engine.tools_with_docker()
    engine.install_packages()
    running = engine.answers(tools)
    engine.start(tools)
    try:
        link_programs(tools)
        print(node_image(tools).name)
        print(pipeline_image(tools))
    finally:
        if not running:
            engine.stop()


if __name__ == "__main__":
    main()
