"""Complete training state, as safetensors and JSON, complete or invisible.

A checkpoint is a folder `checkpoint-SSSSSSSS-aNNN` (step, attempt) in the run's folder:

    config.json, model.safetensors, tokenizer files   what from_pretrained loads
    optimizer.safetensors                             moments by parameter name
    weights/, moments/, shards/                       instead of the two, where ranks shard: pipeline/shards.py
    trained.safetensors, base.json                    instead of the model, of a run with adapters: pipeline/lora.py
    scaler.json (fp16), state.json                    position, history, best
    random/rank-NNNNN.safetensors                     random states of each rank
    parts/rank-NNNNN.json                             what each rank has uploaded, with hashes
    manifest.json                                     all files with size and sha256, written last

Only a folder with its manifest counts. Nothing in it is unpickled.
"""

import functools
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save_file

from pipeline import lora, random_states, records, shards
from pipeline.config import Config
from pipeline.errors import RunError, StorageError, UserError
from pipeline.storage import Store
from pipeline.strategy import pieces

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
        expected = records.manifest(run, f"{name}/{MANIFEST}", found[0])["files"]
    except UserError:
        _warn(f"{run.uri}/{name}/{MANIFEST} is damaged; the checkpoint is left out")
        return False
    for file, size in ((file, facts["size"]) for file, facts in expected.items()):
        if sizes.get(file) != size:
            has = f"has {sizes[file]} bytes" if file in sizes else "is missing"
            _warn(f"{run.uri}/{name}/{file} {has}, and was saved with {size}; the checkpoint is left out")
            return False
    return True


@functools.cache  # once in a process, though checkpoints are looked for at every save
def _warn(words: str) -> None:
    LOGGER.warning("%s", words)


@dataclass(frozen=True)
class Training:
    """What a checkpoint is made of and put into: prepared by Accelerate, but for the tokenizer.

    `layout`: `full`, rank 0 writes whole tensors, or `sharded`, each rank what it holds.
    """

    accelerator: Any
    model: Any
    optimizer: Any
    tokenizer: Any
    layout: Literal["full", "sharded"] = "full"

    @classmethod
    def of(cls, config: Config, accelerator: Any, model: Any, optimizer: Any, tokenizer: Any) -> "Training":
        """With the layout that the strategy writes."""
        full = config.strategy.kind == "fsdp" and config.strategy.state_dict == "full"
        sharded = pieces.holding(model, optimizer).sharded and not full
        return cls(accelerator, model, optimizer, tokenizer, "sharded" if sharded else "full")

    @property
    def module(self) -> Any:
        """The model itself."""
        return pieces.bare(self.model)


def save(folder: Path, training: Training, state: dict[str, Any]) -> None:
    """Write this rank's share of the state into `folder`; every rank calls it, rank 0 holds what all have in common."""
    rank = training.accelerator.process_index
    held = pieces.holding(training.model, training.optimizer)
    (folder / "random").mkdir(parents=True, exist_ok=True)
    save_file(random_states.states(), folder / "random" / f"rank-{rank:05d}.safetensors")
    if training.layout == "sharded":
        shards.write_runs(folder, rank, _own(held.weights(), rank), _own(held.moments(), rank), held.steps())
        if rank == 0 and not lora.is_adapted(training.module):
            # As `save_pretrained` notes it; FSDP2 makes a class of its own of each.
            training.module.config.architectures = [type(training.module).__name__.removeprefix("FSDP")]
            training.module.config.save_pretrained(folder)
            if getattr(training.module, "generation_config", None) is not None:
                training.module.generation_config.save_pretrained(folder)
    else:
        weights, moments = held.whole(keep=rank == 0)
        if rank == 0:
            if lora.is_adapted(training.module):
                save_file(weights, folder / lora.TRAINED)
            else:
                training.module.save_pretrained(folder, state_dict=weights)
            shards.write_whole_moments(folder, moments, held.steps())
    if rank:
        return
    if lora.is_adapted(training.module):
        lora.describe(folder, training.module)
    training.tokenizer.save_pretrained(folder)
    scaler = _scaler(training)
    if scaler is not None:
        _write(folder / "scaler.json", scaler)
    _write(folder / "state.json", state)


def _own(found: Iterable[pieces.Piece], rank: int) -> Iterator[pieces.Piece]:
    """Without what every rank holds, but on rank 0."""
    for piece in found:
        if rank == 0 or not piece.common:
            yield piece


def load(folder: Path, training: Training) -> dict[str, Any]:
    """Put the state of `folder` into model and optimizer, and give back what `state.json` holds; every rank calls it.

    Random states are taken over if the world has the size it had; otherwise those of a fresh start stay.

    Raises:
        RunError: the checkpoint is not one of this model.
    """
    rank, size = training.accelerator.process_index, training.accelerator.num_processes
    held = pieces.holding(training.model, training.optimizer)
    if lora.is_adapted(training.module):
        lora.check_base(folder, training.module)
    with shards.Reader(folder) as reader:
        held.fill(reader)
    if (folder / "scaler.json").exists():
        _restore_scaler(training, _read(folder / "scaler.json"))
    if len(list((folder / "random").iterdir())) == size:
        random_states.restore(load_file(folder / "random" / f"rank-{rank:05d}.safetensors"))
    state: dict[str, Any] = _read(folder / "state.json")
    return state


def _scaler(training: Training) -> dict[str, Any] | None:
    """How far the loss is scaled up in fp16, by torch's scaler or DeepSpeed's."""
    if training.accelerator.scaler is not None:
        return dict(training.accelerator.scaler.state_dict())
    scaler = getattr(getattr(training.model, "optimizer", None), "loss_scaler", None)
    if scaler is None:
        return None
    return {key: value for key, value in vars(scaler).items() if isinstance(value, bool | int | float | None)}


def _restore_scaler(training: Training, values: dict[str, Any]) -> None:
    if training.accelerator.scaler is not None:
        training.accelerator.scaler.load_state_dict(values)
    else:
        vars(training.model.optimizer.loss_scaler).update(values)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


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
    written = {"format": 1, "name": str(name), "world_size": world_size, "files": merged, **facts}
    target.write(MANIFEST, json.dumps(written, indent=1, sort_keys=True).encode())


def _part(rank: int) -> str:
    return f"parts/rank-{rank:05d}.json"


def manifest(run: Store, name: Name | str) -> dict[str, Any]:
    """What a complete checkpoint's manifest says. Raises UserError if it is damaged."""
    return records.manifest(run, f"{name}/{MANIFEST}", run.child(str(name)).read(MANIFEST))


def download(
    run: Store, name: Name | str, folder: Path, wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Any]:
    """Fetch the wanted files of a checkpoint into `folder`, each checked against the manifest, which is given back.

    Raises:
        RunError: a file is not the one that was saved.
        StorageError: a file could not be read from the store, or not be written here.
    """
    source, found = run.child(str(name)), manifest(run, name)
    for relative, expected in found["files"].items():
        if not wanted(relative):
            continue
        path = folder / relative
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"{name}: the manifest names a file outside the checkpoint: {relative}")
        _fetched(source, relative, path, expected["size"])
        if digest(path) != expected["sha256"]:
            raise RunError(
                f"{source.uri}/{relative}: its sha256 is not that of the manifest, so the file was changed or cut; "
                f"delete the folder {source.uri}, and the run goes on from the checkpoint before it"
            )
    return found


def _fetched(source: Store, name: str, path: Path, size: int) -> None:
    """Download a file of `size` bytes. Raises StorageError, which says if it was the writing that failed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        source.download(name, path)
        found = path.stat().st_size
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"storage: cannot write {path}: {error.strerror or error}") from error
    if found < size:
        # The last write before a disk is full, or a limit is reached, writes less than it is given, without an error.
        raise StorageError(f"storage: cannot write {path}: {found:,} of {size:,} bytes are there; is the disk full?")
