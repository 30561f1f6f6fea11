"""Checkpoints of made-up content for tests of storage: their files, saved as a run saves them, without a model."""

import os
from pathlib import Path

from pipeline import checkpoint
from pipeline.storage import Store

TIMEOUT_S = 30.0
# More than one part of a multipart upload.
BIG = (17 << 20) + 5


def save(run: Store, scratch: Path, step: int, attempt: int = 1, size: int = 1000) -> dict[str, bytes]:
    """Save one of a single rank; what its files hold."""
    files = {"model.safetensors": os.urandom(size), "config.json": b"{}", "state.json": b'{"best_step": null}'}
    name = checkpoint.Name(attempt, step)
    folder = scratch / str(name)
    folder.mkdir()
    for file, data in files.items():
        (folder / file).write_bytes(data)
    checkpoint.upload(run, folder, name, 0, 1, {"step": step}, TIMEOUT_S, lambda: None)
    return files


def loaded(run: Store, scratch: Path, name: checkpoint.Name) -> dict[str, bytes]:
    """What a checkpoint's files hold, fetched and checked as a worker does."""
    folder = scratch / "loaded"
    checkpoint.download(run, name, folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def steps(run: Store) -> list[int]:
    """Steps of the complete checkpoints."""
    return [name.step for name in checkpoint.complete(run)]
