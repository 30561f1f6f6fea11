"""An environment with the last Ray that trains with AccelerateTrainer; made once, in the user's cache folder."""

import hashlib
import os
import subprocess
import sys
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
LOCK = REPOSITORY / "requirements" / "old-ray.lock"


def python() -> Path:
    """Its interpreter. 475 MB, and seconds where the packages are at hand; skips where that Ray has no wheels."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("needs Python 3.11: Ray 2.7 has no wheels for later ones, and PyTorch is that of .venv")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipeline" / "old-ray"
    torch = distribution("torch")
    made_of = f"{torch.locate_file('')} {torch.version}".encode() + LOCK.read_bytes()
    folder = cache / hashlib.sha256(made_of).hexdigest()[:12]
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            subprocess.run([REPOSITORY / "scripts" / "install.sh", "old-ray", folder], check=True, timeout=1200)
            link_torch(folder / "lib" / "python3.11" / "site-packages")
            (folder / "complete").touch()
    return folder / "bin" / "python"


def link_torch(site: Path) -> None:
    """Put PyTorch and what it needs there as links into this environment: it has several gigabytes."""
    own = {canonicalize_name(found.name) for found in distributions(path=[str(site)])}
    todo, seen = [Requirement("torch")], set()
    while todo:
        asked = todo.pop()
        name = canonicalize_name(asked.name)
        if name in own or (name, *sorted(asked.extras)) in seen:
            continue
        seen.add((name, *sorted(asked.extras)))
        found = distribution(name)
        for requirement in map(Requirement, found.requires or []):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *asked.extras)):
                todo.append(requirement)
        for entry in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (site / entry).exists():
                (site / entry).symlink_to(str(found.locate_file(entry)))
