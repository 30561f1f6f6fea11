"""`python manifests/render.py` writes rayjob.yaml and raycluster.yaml from the folders; `--check` only compares.

kubectl's built-in kustomize does the work. A test renders again and compares.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OVERLAYS = {"rayjob.yaml": "gpu", "raycluster.yaml": "gpu-cluster"}
CHANGES = """\
# Three things to change before the first deploy, in this file or where it comes from:
#
#   image        registry.example.com/pipeline:0.1.0, wherever it stands below; images/Dockerfile makes it. Its demo
#                target holds the model and the data set that the configuration below names.
#   bucket       s3://REPLACE_ME/runs; `pipeline train` refuses to start while it is there
#   credentials  the Secret pipeline-storage (on EKS a role instead); a store that is not AWS needs its address too:
#                  kubectl apply -f manifests/base/shared/namespace.yaml
#                  kubectl -n pipeline create secret generic pipeline-storage \\
#                    --from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=... \\
#                    --from-literal=AWS_REGION=... --from-literal=AWS_ENDPOINT_URL=https://...
"""
HEADERS = {
    "rayjob.yaml": "# A training job on GPU nodes: kubectl apply -f manifests/rayjob.yaml\n",
    "raycluster.yaml": "# A standing Ray cluster on GPU nodes: kubectl apply -f manifests/raycluster.yaml\n"
    "# Train in it with: kubectl -n pipeline exec HEAD-POD -- pipeline train -c /etc/pipeline/config.yaml\n"
    "# HEAD-POD is what this names: kubectl -n pipeline get pod -l ray.io/node-type=head\n",
}


def rendered(name: str) -> str:
    """The text of a file, as it should be."""
    if shutil.which("kubectl") is None:
        sys.exit("error: kubectl is not on PATH; its built-in kustomize renders the manifests")
    call = ["kubectl", "kustomize", str(HERE / "overlays" / OVERLAYS[name])]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(call)}:\n{done.stderr}")
    made = f"# Made from manifests/overlays/{OVERLAYS[name]} by `make render`: change it there.\n"
    return f"{HEADERS[name]}#\n{CHANGES}#\n{made}{done.stdout}"


def main() -> None:
    """Write the files, or say which differ."""
    check = sys.argv[1:] == ["--check"]
    stale = [name for name in OVERLAYS if not (HERE / name).exists() or (HERE / name).read_text() != rendered(name)]
    if check and stale:
        sys.exit(f"error: not as the folders make them: {', '.join(stale)}; run `make render`")
    for name in stale:
        (HERE / name).write_text(rendered(name))


if __name__ == "__main__":
    main()
