"""Runs read back from storage: list, describe, export."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pipeline import checkpoint, lora, settings
from pipeline.config import RUN_NAME, Storage
from pipeline.errors import UserError
from pipeline.export import is_sharded, join
from pipeline.result import is_metric
from pipeline.run import CONFIG, DATA, OWNER, RESULT, RESULT_FIELDS, parsed
from pipeline.storage import Store, open_store

LOGGER = logging.getLogger("pipeline")
# What a checkpoint holds beside what from_pretrained loads.
STATE_FILES = {"optimizer.safetensors", "scaler.json", "state.json"}
# Folders of sharded weights, from which `export` makes whole ones.
WEIGHT_FOLDERS = ("weights/", "shards/")


@contextmanager
def opened(address: str | None) -> Iterator[Store]:
    """The storage of an address; without one the embedded server's, started for the block."""
    if address is None:
        from pipeline.embedded import embedded_store

        with embedded_store() as storage:
            yield open_store(storage)
    else:
        yield open_store(Storage(path=address))


@contextmanager
def found(run: str, storage: str | None) -> Iterator[Store]:
    """The folder of a run given by name, path or URI.

    Raises:
        UserError: there is none.
    """
    if storage is not None or (RUN_NAME.fullmatch(run) and not Path(run).is_dir()):
        with opened(storage) as store:
            if not store.exists(f"{run}/{CONFIG}"):
                names = [row["run"] for row in summaries(store)]
                raise UserError(f"RUN: no run {run!r} in {store.uri}; found {', '.join(names) or 'none'}")
            yield store.child(run)
        return
    store = open_store(Storage(path=run))
    if not store.exists(CONFIG):
        raise UserError(f"RUN: {run} has no {CONFIG}; expected the folder of a run, <storage.path>/<run.name>")
    yield store


def _json(store: Store, name: str) -> dict[str, Any] | None:
    """A file of a run, None if it is not there. Raises UserError if it is damaged."""
    fields = {OWNER: ("started",), RESULT: RESULT_FIELDS}.get(name, ())
    try:
        return parsed(store, name, store.read(name), fields)
    except FileNotFoundError:
        return None


def summaries(store: Store) -> list[dict[str, Any]]:
    """One line for each run, newest first: `run, status, steps, epochs, best, attempts, started`.

    `best` are the metrics of the best checkpoint. A run that still goes on is `unfinished`, like one that was lost.
    """
    rows = []
    for name in store.folders():
        try:
            row = _summary(store.child(name), name)
        except UserError as error:
            LOGGER.warning("%s", error.problems[0])
            row = {"run": name, "status": "damaged", "started": ""}
        if row is not None:
            rows.append(row)
    return sorted(rows, key=lambda row: str(row["started"]), reverse=True)


def _summary(run: Store, name: str) -> dict[str, Any] | None:
    """The line of one run; None if the folder holds none. Raises UserError if a file of it is damaged."""
    owner = _json(run, OWNER)
    if owner is None:
        return None
    row: dict[str, Any] = {"run": name, "status": "unfinished", "started": owner["started"]}
    result = _json(run, RESULT)
    attempts = len(run.list("attempts"))
    if result:
        best = next((entry for entry in result["history"] if _at(entry, result["best_checkpoint"])), None)
        row |= {"status": result["status"], "steps": result["steps"], "epochs": round(result["epochs"], 2)}
        if best:
            row["best"] = {key: value for key, value in best.items() if is_metric(key)}
    row["attempts"] = attempts
    return row


def _at(entry: dict[str, Any], name: str) -> bool:
    parsed = checkpoint.Name.parse(name)
    return parsed is not None and entry["step"] == parsed.step


def describe(run: Store) -> dict[str, Any]:
    """Result, checkpoints and logs of a run; `result` is None while it is unfinished."""
    result = _json(run, RESULT)
    return {
        "uri": run.uri,
        "status": result["status"] if result else "unfinished",
        "result": result,
        "checkpoints": [str(name) for name in checkpoint.complete(run)],
        "attempts": [_json(run, entry.name) for entry in run.list("attempts")],
        "logs": [entry.name for entry in run.list("logs")],
    }


def export(run: Store, folder: Path, which: Literal["best", "last"], adapter_only: bool = False) -> str:
    """Write model, labels and tokenizer of a checkpoint into `folder`, complete or not at all; returns its name.

    Of a run with LoRA that is the whole model with its adapters merged in, or with `adapter_only` the adapters.

    Raises:
        UserError: the folder is not empty, or the run has no complete checkpoint.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"DIR: {folder} exists and is not an empty folder")
    complete = checkpoint.complete(run)
    if not complete:
        raise UserError(f"RUN: {run.uri} has no complete checkpoint to export")
    name = complete[-1]
    if which == "best":
        name = _best(run, complete)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        partial = Path(scratch) / "model"
        partial.mkdir()
        checkpoint.download(run, name, partial, _of_the_model)
        adapted = (partial / lora.BASE).exists()
        if adapter_only and not adapted:
            raise UserError(f"--adapter-only: {run.uri} has no adapters; it trained the whole model")
        if adapted:
            lora.to_adapter(partial)
            if not adapter_only:
                config = settings.loads(run.read(CONFIG), f"{run.uri}/{CONFIG}")
                lora.merge(partial, config, json.loads(run.read(DATA))["labels"])
        elif is_sharded(partial):
            join(partial)
        _as_new_files(partial)
        if folder.exists():
            folder.rmdir()
        shutil.move(partial, folder)
    return str(name)


def _as_new_files(folder: Path) -> None:
    """Readable by whom the user's own new files are: weights come out of a temporary file, for the user alone."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.rglob("*"):
        file.chmod((0o777 if file.is_dir() else 0o666) & ~mask)


def loader(run: Store, adapter_only: bool = False) -> str:
    """The class whose `from_pretrained` loads an export of the run."""
    language = parsed(run, CONFIG, run.read(CONFIG), ("model",))["model"]["task"] == "causal-lm"
    return f"Auto{'Peft' if adapter_only else ''}ModelFor{'CausalLM' if language else 'SequenceClassification'}"


def _of_the_model(file: str) -> bool:
    return file.startswith(WEIGHT_FOLDERS) or ("/" not in file and file not in STATE_FILES)


def _best(run: Store, complete: list[checkpoint.Name]) -> checkpoint.Name:
    """The best checkpoint; the last one of a run that has evaluated nothing. Raises UserError if it is gone."""
    result = _json(run, RESULT)
    if result:
        wanted = checkpoint.Name.parse(result["best_checkpoint"])
        found = [name for name in complete if name == wanted]
    else:
        step = json.loads(run.child(str(complete[-1])).read("state.json"))["best_step"]
        if step is None:
            return complete[-1]
        wanted, found = step, [name for name in complete if name.step == step]
    if not found:
        raise UserError(
            f"--checkpoint: the best checkpoint, {f'of step {wanted}' if isinstance(wanted, int) else wanted}, is not "
            f"complete in {run.uri}; --checkpoint last gives {complete[-1]}"
        )
    return found[-1]
