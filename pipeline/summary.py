"""What is printed at the end of a run, and when it is looked at again."""

import math
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pipeline.config import Config
from pipeline.result import Result, is_metric, number

if TYPE_CHECKING:
    # `pipeline runs` prints through here too, and need not wait for all that a check imports.
    from pipeline.preflight import Check


def _metrics(values: dict[str, Any]) -> str:
    """As training tells them: the loss, then the metrics in the order in which they are measured."""
    names = sorted((key for key in values if is_metric(key)), key=lambda key: key != "eval_loss")
    return ", ".join(f"{key[5:]} {number(values[key])}" for key in names)


def _add(table: Table, *cells: object) -> None:
    """A row. As Text: what a user has put in brackets is otherwise taken for a colour and is gone."""
    table.add_row(*(Text(str(cell)) for cell in cells))


def _say(console: Console, words: str) -> None:
    console.print(Text(words), soft_wrap=True)


def program() -> str:
    """How this program was called, for a command to type next."""
    called = Path(sys.argv[0])
    if shutil.which("pipeline"):
        return "pipeline"
    return shlex.quote(str(called)) if called.name == "pipeline" else f"{shlex.quote(sys.executable)} -m pipeline"


def show_result(result: Result, config: Config, console: Console) -> None:
    """The table at the end of `pipeline train`, the address of the run, and what to type next."""
    if result.already:
        done = f"{result.steps} steps, {result.epochs:g} epochs"
        _say(console, f"The run {result.name} is complete: {done}. {_more(result, config)}")
    table = Table(show_header=False)
    for entry in result.history:
        _add(table, f"epoch {entry['epoch']:.2f}, step {entry['step']}", _metrics(entry))
    _add(table, "steps", f"{result.steps} on {result.world_size} workers ({result.strategy})")
    if result.resumed_from_step:
        _add(table, "resumed", f"from step {result.resumed_from_step}, attempt {result.attempts}")
    rows = f"{result.train_rows:,} train, {result.eval_rows:,} validation, {result.truncated_rows:,} cut"
    _add(table, "rows", rows)
    _add(table, "time", f"{result.seconds:.0f} s, {result.train_seconds:.0f} s in optimizer steps")
    _add(table, "waiting for data", f"{result.data_wait_share:.1%} of the steps' time")
    _add(table, "best checkpoint", result.best_checkpoint)
    console.print(table)
    embedded = config.storage.path is None
    _say(console, f"The run lies at {result.uri}" + (" (the embedded S3 server)" if embedded else ""))
    address = shlex.quote(result.name if embedded else result.uri)
    _say(console, f"Next:  {program()} runs export {address} ./{result.name}-model")


def _more(result: Result, config: Config) -> str:
    """How to go on with a run that has nothing left to do."""
    if config.training.max_steps is not None and not result.stopped_early:
        more = "a higher training.max_steps trains on"
    else:
        epochs = max(config.training.epochs, math.ceil(result.epochs)) + 1
        more = f"training.epochs={epochs} trains {'on' if result.stopped_early else 'one more'}"
    return f"Nothing to train; {more}, another run.name starts anew."


def show_list(rows: list[dict[str, Any]], console: Console) -> None:
    """The table of `pipeline runs list`."""
    table = Table("run", "status", "steps", "epochs", "best", "attempts", Column("started (UTC)", no_wrap=True))
    for row in rows:
        cells = [row.get(column, "") for column in ("run", "status", "steps", "epochs")]
        # Without seconds, so that a narrow terminal has room for it.
        started = str(row["started"])[:16].replace("T", " ")
        _add(table, *cells, _metrics(row.get("best", {})), row.get("attempts", ""), started)
    console.print(table)


def show_run(facts: dict[str, Any], address: str, console: Console) -> None:
    """The table of `pipeline runs show`; `address` is what stands for the run in a command."""
    table = Table(show_header=False)
    _add(table, "run", facts["uri"])
    _add(table, "status", facts["status"])
    result = facts["result"]
    if result:
        for entry in result["history"]:
            _add(table, f"epoch {entry['epoch']:.2f}, step {entry['step']}", _metrics(entry))
        _add(table, "steps", f"{result['steps']} on {result['world_size']} workers ({result['strategy']})")
        _add(table, "rows", f"{result['train_rows']:,} train, {result['eval_rows']:,} validation")
        _add(table, "best checkpoint", result["best_checkpoint"])
        _add(table, "last checkpoint", result["last_checkpoint"])
    _add(table, "checkpoints", "\n".join(facts["checkpoints"]) or "none")
    _add(table, "attempts", len(facts["attempts"]))
    _add(table, "logs", "\n".join(facts["logs"]) or "none")
    console.print(table)
    _say(console, f"To read logs and metrics:  {program()} runs copy {address} DIR")


MOST_CLASSES = 20
MOST_FILES = 5


def show_checks(checks: "list[Check]", console: Console) -> None:
    """The tables of `pipeline check`: a row for each check, then what is in the data."""
    table = Table("check", "", "found")
    for check in checks:
        _add(table, check.name, "ok" if check.passed else "wrong", check.found)
    console.print(table)
    splits = next((check.details for check in checks if check.name == "data" and check.details), None)
    if splits:
        _show_splits(splits, console)
        _show_labels(splits, console)
        _show_first_rows([row for found in splits.values() for row in found["first_rows"]], console)


def _show_first_rows(rows: list[dict[str, Any]], console: Console) -> None:
    # Labels only where the task has some.
    columns = [key for key in ("tokens", "label", "target") if any(row[key] is not None for row in rows)]
    table = Table("first rows, as the model sees them", *("trained as" if key == "target" else key for key in columns))
    for row in rows:
        cells = (row["text"], *(str(row[key]) for key in columns))
        _add(table, *(cell if len(cell) <= 300 else f"{cell[:297]}..." for cell in cells))
    console.print(table)


def _show_splits(splits: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table("data", *splits)
    rows: dict[str, list[str]] = {
        "files": [_files(found["files"]) for found in splits.values()],
        "rows": [f"{found['rows']:,}" for found in splits.values()],
        "columns": [", ".join(found["columns"]) for found in splits.values()],
        "empty texts": [f"{found['empty_texts']:,}" for found in splits.values()],
        "tokens of a row: median, 90 %, 99 %, most": [
            "{p50:,}, {p90:,}, {p99:,}, {max:,}".format(**found["lengths"]) for found in splits.values()
        ],
        "cut at data.max_length": [
            f"{found['truncated_share']:.1%} at {found['max_length']}" for found in splits.values()
        ],
    }
    if any(found["lengths"]["measured_rows"] < found["rows"] for found in splits.values()):
        rows["rows measured, evenly spread"] = [f"{found['lengths']['measured_rows']:,}" for found in splits.values()]
    for name, cells in rows.items():
        _add(table, name, *cells)
    console.print(table)


def _files(files: list[dict[str, Any]]) -> str:
    lines = [f"{file['path']} ({file['format']}, {file['rows']:,} rows)" for file in files[:MOST_FILES]]
    return "\n".join([*lines, *([f"and {len(files) - MOST_FILES} more"] if len(files) > MOST_FILES else [])])


def _show_labels(splits: dict[str, dict[str, Any]], console: Console) -> None:
    """Rows of each class, the most frequent first; classes beyond the limit together."""
    labels = sorted(splits["train"]["labels"].items(), key=lambda item: -item[1])
    if not labels:
        return
    table = Table("label", *(f"{split} rows" for split in splits))
    for label, _ in labels[:MOST_CLASSES]:
        _add(table, label, *(f"{found['labels'].get(label, 0):,}" for found in splits.values()))
    rest = [label for label, _ in labels[MOST_CLASSES:]]
    if rest:
        sums = (sum(found["labels"].get(label, 0) for label in rest) for found in splits.values())
        _add(table, f"and {len(rest)} more, {labels[-1][1]:,} rows the rarest", *(f"{count:,}" for count in sums))
    console.print(table)
