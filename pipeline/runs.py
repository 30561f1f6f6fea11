"""Runs read back from storage: list, describe, export, copy."""

import logging
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pipeline import checkpoint, lora, records
from pipeline.config import RUN_NAME, Storage
from pipeline.destination import filled
from pipeline.errors import RunError, StorageError, UserError
from pipeline.export import is_sharded, join
from pipeline.records import CONFIG, DATA, METRICS, OWNER, RESULT
from pipeline.result import is_metric
from pipeline.storage import Store, open_store, resolve

LOGGER = logging.getLogger("pipeline")
# What a checkpoint holds beside what from_pretrained loads.
STATE_FILES = {"optimizer.safetensors", "scaler.json", "state.json"}
# Folders of sharded weights, from which `export` makes whole ones.
WEIGHT_FOLDERS = ("weights/", "shards/")
# What a run writes about itself; of one that is not finished `metrics/` has the lines so far.
FILES = (CONFIG, DATA, OWNER, RESULT, METRICS)
FOLDERS = ("attempts", "logs", "metrics")


@contextmanager
def opened(address: str | None, source: str = "STORAGE") -> Iterator[Store]:
    """The storage of an address; without one the embedded server's, started for the block.

    Raises:
        UserError: there is no such folder, or the address is none; the message begins with `source`.
    """
    if address is None:
        from pipeline.embedded import embedded_store

        with embedded_store() as storage:
            yield open_store(storage)
        return
    if not address:
        raise UserError(f"{source}: is empty; expected a folder of runs or s3://bucket/prefix")
    place = _place(address, source)
    if not str(place.path).startswith("s3://"):
        try:
            mode = Path(place.path or "").stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{source}: {address}: no such folder") from None
        except OSError as error:  # a name that is too long, a folder that may not be entered
            raise UserError(f"{source}: {address[:200]}: cannot be read: {error.strerror}") from error
        if not stat.S_ISDIR(mode):
            raise UserError(f"{source}: {address} is a file, expected a folder of runs")
    yield _reached(place, source)


def _place(address: str, source: str) -> Storage:
    # A copy is not validated: of an argument that is not UTF-8 `resolve` says what is wrong, and where.
    return resolve(Storage().model_copy(update={"path": address}), source)


def _reached(place: Storage, source: str) -> Store:
    """The store of an address, after a first request: only a listing tells a missing bucket from a missing object.

    Raises:
        UserError: the bucket does not exist, or the credentials are not right for it.
        StorageError: the store has not answered for as long as it is asked again.
    """
    store = open_store(place)
    if str(place.path).startswith("s3://"):
        try:
            store.folders()
        except StorageError as error:
            from pipeline.s3_errors import is_passing

            if error.__cause__ is not None and is_passing(error.__cause__):
                raise
            raise UserError(f"{source}: {place.path}: {error.problems[0]}") from error
    return store


@contextmanager
def found(run: str, storage: str | None) -> Iterator[Store]:
    """The folder of a run given by name, path or URI.

    Raises:
        UserError: there is none.
    """
    if not run:
        raise UserError("RUN: is empty; expected the name, path or URI of a run")
    if storage is not None or (RUN_NAME.fullmatch(run) and not Path(run).is_dir()):
        if "/" in run or run in (".", "..") or not run.isprintable():
            raise UserError(f"RUN: found {run!r}, expected the name of a run, as it lies in --storage")
        with opened(storage, "--storage") as store:
            if not store.exists(f"{run}/{CONFIG}"):
                names = [row["run"] for row in summaries(store)]
                raise UserError(f"RUN: no run {run!r} in {store.uri}; found {', '.join(names) or 'none'}")
            yield store.child(run)
        return
    store = _reached(_place(run, "RUN"), "RUN")
    if not store.exists(CONFIG):
        raise UserError(f"RUN: {run} has no {CONFIG}; expected the folder of a run, <storage.path>/<run.name>")
    yield store


def summaries(store: Store) -> list[dict[str, Any]]:
    """One line for each run, newest first: `run, status, steps, epochs, best, attempts, started`.

    `best` are the metrics of the best checkpoint. A run that still goes on is `unfinished`, like one that was lost. One
    with a file that is not as it was written is `damaged`, and its file is said in a warning.
    """
    rows = []
    for name in store.folders():
        try:
            row = _summary(store.child(name), name)
        except (UserError, StorageError) as error:
            # A file in a folder that cannot be read is that run's; a store that does not answer is everybody's.
            if isinstance(error, StorageError) and store.uri.startswith("s3://"):
                raise
            LOGGER.warning("%s", error.problems[0])
            row = {"run": name, "status": "damaged", "started": ""}
        if row is not None:
            rows.append(row)
    return sorted(rows, key=lambda row: str(row["started"]), reverse=True)


def _summary(run: Store, name: str) -> dict[str, Any] | None:
    """The line of one run; None if the folder holds none. Raises UserError if a file of it is damaged."""
    owner = records.owner(run)
    if owner is None:
        if run.exists(CONFIG) or run.exists(RESULT):
            raise records.damaged(run, OWNER, "is missing")
        return None
    row: dict[str, Any] = {"run": name, "status": "unfinished", "started": owner["started"]}
    result = records.final(run)
    if result:
        best = next((entry for entry in result["history"] if _at(entry, result["best_checkpoint"])), None)
        row |= {"status": result["status"], "steps": result["steps"], "epochs": round(result["epochs"], 2)}
        if best:
            row["best"] = {key: value for key, value in best.items() if is_metric(key)}
    row["attempts"] = len(records.attempts(run))
    return row


def _at(entry: dict[str, Any], name: str) -> bool:
    parsed = checkpoint.Name.parse(name)
    return parsed is not None and entry["step"] == parsed.step


def describe(run: Store) -> dict[str, Any]:
    """Result, checkpoints and logs of a run; `result` is None while it is unfinished."""
    result = records.final(run)
    return {
        "uri": run.uri,
        "status": result["status"] if result else "unfinished",
        "result": result,
        "checkpoints": [str(name) for name in checkpoint.complete(run)],
        "attempts": [records.attempt(run, name) for name in records.attempts(run).values()],
        "logs": [entry.name for entry in run.list("logs")],
    }


def copy(run: Store, folder: Path, checkpoints: bool = False) -> int:
    """Write the files of a run into an empty `folder`, each under its name; returns their number.

    With `checkpoints` the complete ones as well, each file compared with its manifest: then all is there that a run
    needs to go on from the copy.
    """
    named = [entry.name for part in FOLDERS for entry in run.list(part)]
    names = [*(name for name in FILES if run.exists(name)), *(name for name in named if _is_plain(name))]
    for name in names:
        _write(folder / name, run.read(name))
    for saved in map(str, checkpoint.complete(run) if checkpoints else []):
        with _kept():
            files = checkpoint.download(run, saved, folder / saved)["files"]
            _write(folder / saved / checkpoint.MANIFEST, run.read(f"{saved}/{checkpoint.MANIFEST}"))
        names += [*files, checkpoint.MANIFEST]
    return len(names)


@contextmanager
def _kept() -> Iterator[None]:
    """For a block that reads a checkpoint, which a run that trains on may delete meanwhile."""
    try:
        yield
    except FileNotFoundError as error:
        where = error.filename or error
        raise RunError(
            f"RUN: {where} was deleted while it was read, as the run goes on; start the command again"
        ) from error


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise StorageError(f"storage: cannot write {path}: {error.strerror or error}") from error


def _is_plain(name: str) -> bool:
    """Whether a name keeps within a folder: a key in S3 may be anything."""
    return not any(part in ("", ".", "..") for part in name.split("/"))


def export(run: Store, folder: Path, which: Literal["best", "last"], adapter_only: bool = False) -> str:
    """Write model, labels and tokenizer of a checkpoint into `folder`, complete or not at all; returns its name.

    Of a run with LoRA that is the whole model with its adapters merged in, or with `adapter_only` the adapters.

    Raises:
        UserError: the folder is not empty or cannot be written, or the run has no complete checkpoint.
    """
    with filled(folder) as partial:
        return model_into(run, partial, which, adapter_only)


def model_into(run: Store, partial: Path, which: Literal["best", "last"], adapter_only: bool = False) -> str:
    """What `export` writes, into an empty folder."""
    complete = checkpoint.complete(run)
    if not complete:
        raise UserError(f"RUN: {run.uri} has no complete checkpoint to export")
    name = complete[-1]
    with _kept():
        if which == "best":
            name = _best(run, complete)
        checkpoint.download(run, name, partial, _of_the_model)
    if not is_sharded(partial) and not any(partial.glob("*.safetensors")):
        raise RunError(f"{run.uri}/{name}: has no weights; its manifest was changed, so delete the folder")
    adapted = (partial / lora.BASE).exists()
    if adapter_only and not adapted:
        raise UserError(f"--adapter-only: {run.uri} has no adapters; it trained the whole model")
    if adapted:
        lora.to_adapter(partial)
        if not adapter_only:
            config, facts = records.configuration(run), records.facts(run)
            if config is None or facts is None:
                raise UserError(f"RUN: {run.uri} has no {DATA if config else CONFIG}, which merging its adapters takes")
            lora.merge(partial, config, facts.labels)
    elif is_sharded(partial):
        join(partial)
    return str(name)


def loader(run: Store, adapter_only: bool = False) -> str:
    """The class whose `from_pretrained` loads an export of the run."""
    language = records.task(run) == "causal-lm"
    return f"Auto{'Peft' if adapter_only else ''}ModelFor{'CausalLM' if language else 'SequenceClassification'}"


def _of_the_model(file: str) -> bool:
    return file.startswith(WEIGHT_FOLDERS) or ("/" not in file and file not in STATE_FILES)


def _best(run: Store, complete: list[checkpoint.Name]) -> checkpoint.Name:
    """The best checkpoint; the last one of a run that has evaluated nothing. Raises UserError if it is gone."""
    result = records.final(run)
    wanted: checkpoint.Name | int | None
    if result:
        wanted = checkpoint.Name.parse(result["best_checkpoint"])
        found = [name for name in complete if name == wanted]
    else:
        step = records.best_step(run, f"{complete[-1]}/state.json")
        if step is None:
            return complete[-1]
        wanted, found = step, [name for name in complete if name.step == step]
    if not found:
        raise UserError(
            f"--checkpoint: the best checkpoint, {f'of step {wanted}' if isinstance(wanted, int) else wanted}, is not "
            f"complete in {run.uri}; --checkpoint last gives {complete[-1]}"
        )
    return found[-1]
