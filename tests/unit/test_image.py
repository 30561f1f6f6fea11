"""The image's own small program, and what its Dockerfile takes from the lock files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements/runtime.lock"


def select(kind: str, folder: Path) -> tuple[str, str]:
    """The lock and the extra requirement that images/select-torch writes."""
    call = [
        sys.executable,
        str(ROOT / "images/select-torch"),
        kind,
        str(LOCK),
        str(folder / "lock"),
        str(folder / "extra"),
    ]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return (folder / "lock").read_text(), (folder / "extra").read_text()


def names(lock: str) -> set[str]:
    """Package names of a lock."""
    return set(re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==", lock, flags=re.MULTILINE))


def test_cuda_image_takes_the_whole_lock(tmp_path: Path) -> None:
    assert select("cuda", tmp_path) == (LOCK.read_text(), "")


def test_cpu_image_leaves_out_only_nvidias_packages_and_takes_the_same_torch(tmp_path: Path) -> None:
    lock, extra = select("cpu", tmp_path)
    left_out = names(LOCK.read_text()) - names(lock)
    assert {"torch", "triton"} < left_out
    assert all(name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-")) for name in left_out)
    version = re.search(r"^torch==(\S+)", LOCK.read_text(), flags=re.MULTILINE)
    assert version is not None
    assert extra == f"torch=={version[1]}+cpu\n"


def test_unknown_torch_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="error: TORCH is 'rocm'; it can be cuda or cpu"):
        select("rocm", tmp_path)


def test_deepspeed_layer_finds_its_packages_in_the_lock() -> None:
    wanted = re.search(r"keep = /\^\((deepspeed.*?)\)==/", (ROOT / "images/Dockerfile").read_text())
    assert wanted is not None
    extra = names((ROOT / "requirements/deepspeed.lock").read_text()) - names(LOCK.read_text())
    assert set(wanted[1].split("|")) == extra


def test_demo_layer_finds_its_packages_in_the_lock() -> None:
    wanted = re.search(r"keep = /\^\((gt-.*?)\)==/", (ROOT / "images/Dockerfile").read_text())
    assert wanted is not None
    demo = names((ROOT / "requirements/demo.lock").read_text()) - names(LOCK.read_text())
    # Of the model's package only the folder of weights is read, never the code that would import this one.
    assert set(wanted[1].split("|")) == demo - {"sentence-transformers"}
