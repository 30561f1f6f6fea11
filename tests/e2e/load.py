"""Images into the nodes of the cluster.

`kind load` writes a 6 GB image five times over (a file, then content and layers on both nodes): 3 min 20 s on a disk of
240 MB/s. Where the engine keeps its layers as folders on this machine, `share` mounts them into the nodes instead: 2 s.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.e2e.command import Tools

HERE = Path(__file__).parent


def layers_folder(tools: Tools) -> Path | None:
    """The folder of the engine's layers if nodes can mount it: overlay2, on this machine."""
    info = json.loads(tools.output("docker", "info", "--format", "{{json .}}"))
    folder = Path(info["DockerRootDir"]) / "overlay2"
    return folder if info["Driver"] == "overlay2" and folder.is_dir() else None


def share(tools: Tools, layers: Path, nodes: Iterable[str], image: str) -> None:
    """Make `image` known to the nodes, whose /kind/layers is `layers`."""
    described: dict[str, Any] = json.loads(tools.output("docker", "image", "inspect", image))[0]
    diffs: list[str] = described["RootFS"]["Layers"]
    data = described["GraphDriver"]["Data"]
    above_below = [data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":"))]
    folders = [str(Path(folder).relative_to(layers)) for folder in reversed(above_below)]
    if len(folders) != len(diffs):
        raise RuntimeError(f"{image} has {len(diffs)} layers and {len(folders)} folders")
    pairs = [text for pair in zip(_chain_ids(diffs), folders, strict=True) for text in pair]
    # The engine's own file, so that the image has the same id on the nodes.
    database = layers.parent / "image/overlay2/imagedb/content/sha256"
    config = (database / described["Id"].removeprefix("sha256:")).read_bytes()
    archive = _archive_without_layers(image, config, diffs)
    script = (HERE / "node/share-layers").read_bytes()
    for node in nodes:
        # Not `docker cp`: it mounts the node's mounts once more on themselves, which doubles their number each time.
        write = "cat > /kind/share-layers && chmod +x /kind/share-layers"
        tools.run("docker", "exec", "--interactive", node, "sh", "-c", write, stdin=script)
        tools.run("docker", "exec", "--interactive", "--privileged", node, "/kind/share-layers", *pairs, stdin=archive)


def _chain_ids(diffs: list[str]) -> list[str]:
    """containerd's name for each layer on top of those below it (OCI image specification, "Layer ChainID")."""
    chains = diffs[:1]
    for diff in diffs[1:]:
        chains.append("sha256:" + hashlib.sha256(f"{chains[-1]} {diff}".encode()).hexdigest())
    return chains


def _archive_without_layers(image: str, config: bytes, diffs: list[str]) -> bytes:
    """An OCI image layout with index, manifest and configuration: importing reads no layer that has a snapshot."""
    files: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    manifest_type = "application/vnd.oci.image.manifest.v1+json"
    manifest = {
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": blob(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": diff, "size": 1} for diff in diffs
        ],
    }
    entry = blob(json.dumps(manifest).encode(), manifest_type)
    first, _, rest = image.partition("/")
    name = image if rest and ("." in first or ":" in first) else f"docker.io/library/{image}"
    entry["annotations"] = {"io.containerd.image.name": name}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
