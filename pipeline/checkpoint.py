"""Complete training state, as safetensors and JSON, complete or invisible.

A checkpoint is a folder `checkpoint-SSSSSSSS-aNNN` (step, attempt) in the run's folder:

    config.json, model.safetensors, tokenizer files   what from_pretrained loads
    optimizer.safetensors, optimizer.json             moments by parameter name; settings of each group
    scheduler.json, scaler.json (fp16), state.json    position, history, best
    random/rank-NNNNN.safetensors                     random states of each rank
    parts/rank-NNNNN.json                             what each rank has uploaded, with hashes
    manifest.json                                     all files with size and sha256, written last

Only a folder with its manifest counts. Nothing in it is unpickled.
"""

import functools
import hashlib
import json
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from pipeline import lora
from pipeline.errors import RunError
from pipeline.storage import Store

LOGGER = logging.getLogger("pipeline")
NAME = re.compile(r"checkpoint-(\d{8,})-a(\d{3,})")
MANIFEST = "manifest.json"


@dataclass(frozen=True, order=True)
class Name:
    """Orders checkpoints: a newer attempt's come after an older one's, whatever their steps."""

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"checkpoint-{self.step:08d}-a{self.attempt:03d}"

    @classmethod
    def parse(cls, text: str) -> "Name | None":
        """None if `text` is not the name of a checkpoint."""
        found = NAME.fullmatch(text)
        return cls(int(found[2]), int(found[1])) if found else None


def complete(run: Store) -> list[Name]:
    """Checkpoints of a run that have their manifest and every file of it at its full size, oldest first.

    One whose files were cut or lost after it was saved is left out, with a warning; it costs a listing and a small read
    for each checkpoint.
    """
    names = [name for folder in run.folders() if (name := Name.parse(folder))]
    return sorted(name for name in names if _is_complete(run, name))


def _is_complete(run: Store, name: Name) -> bool:
    sizes = {entry.name.removeprefix(f"{name}/"): entry.size for entry in run.list(str(name))}
    found = run.read_tagged(f"{name}/{MANIFEST}") if MANIFEST in sizes else None
    if found is None:
        return False  # not finished, or just being deleted
    try:
        expected = {file: int(facts["size"]) for file, facts in json.loads(found[0])["files"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        _warn(f"{run.uri}/{name}/{MANIFEST} is damaged; the checkpoint is left out")
        return False
    for file, size in expected.items():
        if sizes.get(file) != size:
            has = f"has {sizes[file]} bytes" if file in sizes else "is missing"
            _warn(f"{run.uri}/{name}/{file} {has}, and was saved with {size}; the checkpoint is left out")
            return False
    return True


@functools.cache  # once in a process, though checkpoints are looked for at every save
def _warn(words: str) -> None:
    LOGGER.warning("%s", words)


def save(
    folder: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    tokenizer: Any,
    scaler: Any,
    state: dict[str, Any],
    rank: int,
) -> None:
    """Write this rank's share of the state into `folder`; every rank calls it, rank 0 holds what all have in common."""
    (folder / "random").mkdir(parents=True, exist_ok=True)
    save_file(_random_state(), folder / "random" / f"rank-{rank:05d}.safetensors")
    if rank:
        return
    if lora.is_adapted(model):
        lora.save(folder, model)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tensors, settings = _optimizer_state(model, optimizer)
    save_file(tensors, folder / "optimizer.safetensors")
    _write(folder / "optimizer.json", settings)
    _write(folder / "scheduler.json", {"last_epoch": scheduler.state_dict()["last_epoch"]})
    if scaler is not None:
        _write(folder / "scaler.json", scaler.state_dict())
    _write(folder / "state.json", state)


def load(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, rank: int, world_size: int
) -> dict[str, Any]:
    """Put the state of `folder` into model and optimizer, and give back what `state.json` holds.

    Random states are taken over if the world has the size it had; otherwise those of a fresh start stay.
    """
    if lora.is_adapted(model):
        lora.load(folder, model)
    else:
        _load_model(folder, model)
    _restore_optimizer(model, optimizer, load_file(folder / "optimizer.safetensors"), _read(folder / "optimizer.json"))
    if scaler is not None and (folder / "scaler.json").exists():
        scaler.load_state_dict(_read(folder / "scaler.json"))
    if len(list((folder / "random").iterdir())) == world_size:
        _restore_random(load_file(folder / "random" / f"rank-{rank:05d}.safetensors"))
    state: dict[str, Any] = _read(folder / "state.json")
    return state


def _load_model(folder: Path, model: torch.nn.Module) -> None:
    weights = load_file(folder / "model.safetensors")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if unexpected or [name for name in missing if name not in tied]:
        raise RunError(
            f"checkpoint {folder.name}: parameters {sorted([*missing, *unexpected])[:3]} do not fit the model"
        )


def _optimizer_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors = {
        f"{names[id(parameter)]}::{key}": value.detach().cpu().contiguous()
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }
    settings = [
        {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
        for group in optimizer.param_groups
    ]
    return tensors, settings


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, bool | int | float | str)
        or (isinstance(value, tuple | list) and all(_is_plain(item) for item in value))
    )


def _restore_optimizer(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, torch.Tensor],
    settings: list[dict[str, Any]],
) -> None:
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, field = key.rsplit("::", 1)
        parameter = parameters[name]
        # AdamW keeps its step counter on the CPU; moments live where the parameter does.
        optimizer.state[parameter][field] = value if field == "step" else value.to(parameter.device)
    for group, saved in zip(optimizer.param_groups, settings, strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()})


def _random_state() -> dict[str, torch.Tensor]:
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    assert version == 3 and kind == "MT19937"
    tensors = {
        "python": torch.tensor(numbers, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys, np.int64).copy()),
        "numpy_rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors


def _restore_random(tensors: dict[str, torch.Tensor]) -> None:
    random.setstate((3, tuple(tensors["python"].tolist()), next(iter(tensors["python_gauss"].tolist()), None)))
    position, has_gauss, cached = tensors["numpy_rest"].tolist()
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))  # noqa: NPY002
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True), encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def digest(path: Path) -> str:
    """sha256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def upload(
    run: Store,
    folder: Path,
    name: Name,
    rank: int,
    world_size: int,
    facts: dict[str, Any],
    timeout_s: float,
    still_current: Callable[[], None],
) -> None:
    """Upload this rank's files; rank 0 then waits for the others' and writes the manifest.

    Runs in a background thread while training goes on, so it must not enter a collective: the ranks meet in storage.

    Raises:
        StorageError: the store failed for longer than it is tried.
        RunError: another rank did not finish within `timeout_s`.
        Superseded: by `still_current`, a newer attempt has taken over.
    """
    target = run.child(str(name))
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        relative = path.relative_to(folder).as_posix()
        files[relative] = {"size": path.stat().st_size, "sha256": digest(path)}
        target.upload(path, relative)
    target.write(_part(rank), json.dumps(files).encode())
    if rank:
        return
    deadline = time.monotonic() + timeout_s
    waiting = {_part(other): other for other in range(world_size)}
    merged: dict[str, Any] = {}
    while waiting:
        for part in [part for part in waiting if target.exists(part)]:
            merged |= json.loads(target.read(part))
            del waiting[part]
        if waiting and time.monotonic() > deadline:
            raise RunError(f"{name}: ranks {sorted(waiting.values())} did not upload their part in {timeout_s:g} s")
        if waiting:
            time.sleep(0.2)
    still_current()
    manifest = {"format": 1, "name": str(name), "world_size": world_size, "files": merged, **facts}
    target.write(MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())


def _part(rank: int) -> str:
    return f"parts/rank-{rank:05d}.json"


def download(
    run: Store, name: Name | str, folder: Path, wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Any]:
    """Fetch the wanted files of a checkpoint into `folder`, each checked against the manifest, which is given back.

    Raises:
        RunError: a file is not the one that was saved.
    """
    source = run.child(str(name))
    manifest: dict[str, Any] = json.loads(source.read(MANIFEST))
    for relative, expected in manifest["files"].items():
        if not wanted(relative):
            continue
        path = folder / relative
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"{name}: the manifest names a file outside the checkpoint: {relative}")
        path.parent.mkdir(parents=True, exist_ok=True)
        source.download(relative, path)
        if digest(path) != expected["sha256"]:
            raise RunError(
                f"{source.uri}/{relative}: its sha256 is not that of the manifest, so the file was changed or cut; "
                f"delete the folder {source.uri}, and the run goes on from the checkpoint before it"
            )
    return manifest
