"""One pass over all rows before any worker starts: is this data that the job can be run on, and what is in it?

Everything wrong is said together, with file and row; nothing is repaired silently.
"""

import unicodedata
from collections.abc import Callable
from difflib import get_close_matches

from pipeline.config import Config
from pipeline.data.columns import columns_of, label_column
from pipeline.data.facts import Facts
from pipeline.data.files import find, read
from pipeline.data.labels import NO_LABEL, boolean, class_name, encode_labels, sorted_names, whole_number
from pipeline.data.tally import Ledger, Seen, Split, add, shown
from pipeline.errors import PipelineError, UserError

__all__ = ["Facts", "encode_labels", "inspect"]

BATCH_ROWS = 65_536
MOST_PROBLEMS = 30
MOST_CHANGES = 100  # of type within one file, after which it is not read on


def inspect(config: Config) -> Facts:
    """Read every row of both splits once and return what is in them.

    Raises UserError with all problems found, a line each: files that cannot be found or read, missing columns, null or
    non-string texts, null labels or labels of mixed type, classes that training does not know, too few rows.
    """
    ledger = Ledger()
    splits = []
    for name, paths in (("train", config.data.train), ("validation", config.data.validation)):
        if paths is not None:
            splits.append(_counted(name, paths, config, ledger))
    names: dict[str, dict[str, Seen]] = {}
    label_type, labels = "float", []
    if label_column(config) is None:
        label_type = "none"
    elif config.model.task != "regression":
        label_type = _label_type(splits, ledger)
        names = {split.name: _named(split, label_type, ledger) for split in splits}
        if label_type == "integer":
            _refuse_markers(names, ledger)
        labels = sorted_names(list(names["train"]), label_type)
        _refuse_lookalikes(names["train"], ledger)
        _refuse_places(splits, labels, ledger)
        _judge_classes(splits, names, labels, config, ledger)
    _judge_rows(splits, config, ledger)
    problems = ledger.problems(MOST_PROBLEMS)
    if problems:
        raise UserError(*problems)
    return Facts(
        files={split.name: split.files for split in splits},
        rows={split.name: split.rows for split in splits},
        rows_per_file={split.name: split.rows_per_file for split in splits},
        labels=labels,
        label_counts={
            split: {label: seen[label].count if label in seen else 0 for label in labels}
            for split, seen in names.items()
        },
        label_type=label_type,
        empty_texts={split.name: split.empty_texts for split in splits},
    )


def _counted(name: str, paths: str | list[str], config: Config, ledger: Ledger) -> Split:
    """Read all files of a split. A file that cannot be read is a problem; the others are still looked at."""
    wanted = columns_of(config)
    try:
        split = Split(name, find(paths, config.data, config.storage, f"data.{name}"))
    except UserError as error:
        for problem in error.problems:
            ledger.note((name, problem), problem)
        return Split(name, [], complete=False)
    for file in split.files:
        rows, changes, schema = 0, 0, None
        try:
            for table in read(file, wanted, config.data, config.storage, BATCH_ROWS):
                add(split, file, rows, table, config, ledger)
                rows += len(table)
                changes += table.schema != schema
                schema = table.schema
                if changes > MOST_CHANGES:
                    split.complete = False
                    break
        except PipelineError as error:
            split.complete = False
            for problem in error.problems:
                ledger.note((name, problem), f"data.{name}: {problem}{_column_setting(problem, config)}")
        split.rows_per_file.append(rows)
    return split


def _column_setting(problem: str, config: Config) -> str:
    """Where to correct the name of a column that a file lacks; columns that only one task reads come last."""
    fields = [field for field, column in config.data.columns if f": no column {column!r};" in problem]
    return f"; set data.columns.{fields[-1]}" if fields else ""


def _label_type(splits: list[Split], ledger: Ledger) -> str:
    """The one type of all labels: string, integer or boolean. Notes each file that has another than the first one."""
    kinds = [(split, kind, first) for split in splits for (_, kind), first in split.kinds.items()]
    typed = [(split, kind, first) for split, kind, first in kinds if kind != "csv"]
    if not typed:
        texts = [value for split in splits for _, value in split.values]
        return "integer" if any(texts) and all(whole_number(text) for text in texts if text) else "string"
    _, expected, (file, row, value) = typed[0]
    origin = f"{file.name} row {row} has the {expected} {shown(value)}"
    for split, kind, (other, other_row, other_value) in typed:
        if kind != expected:
            line = f"{other.name} row {other_row}: label {shown(other_value)} is a {kind}, but {origin}; use one type"
            ledger.note(("mixed", other.path, kind), f"data.{split.name}: {line}")
    if expected != "string":
        reading = whole_number if expected == "number" else boolean
        for split in splits:
            for (kind, text), seen in split.values.items():
                if kind == "csv" and text and reading(text) is None:
                    line = f"{seen.file.name} row {seen.row}: label {shown(text)} is no {expected}, but {origin}"
                    ledger.note(("mixed", seen.file.path), f"data.{split.name}: {line}; use one type", seen.count)
    return "integer" if expected == "number" else expected


def _named(split: Split, label_type: str, ledger: Ledger) -> dict[str, Seen]:
    """The classes of a split by name. Notes values that name none: empty texts, and numbers that are not whole.

    Values of another type than the labels' are left out; `_label_type` has noted them.
    """
    named: dict[str, Seen] = {}
    readings: dict[str, Callable[[str], str | None]] = {"string": str, "integer": whole_number, "boolean": boolean}
    reading = readings[label_type]
    for (kind, value), seen in split.values.items():
        place = f"data.{split.name}: {seen.file.name} row {seen.row}: label"
        if value != value or not str(value).strip():  # pandas writes NaN for what is missing
            ledger.note(("empty", seen.file.path), f"{place} is empty; each row needs a label", seen.count)
            continue
        name = reading(value) if kind == "csv" else class_name(value)
        if name is None and kind == "number":
            rounded = "" if value != value // 1 else " for certain, as one with a point beside it is rounded at this size"
            line = f"{place} {value} is no whole number{rounded}, so no class; for numbers set model.task to regression"
            ledger.note(("fraction", seen.file.path), line, seen.count)
        elif name is None or kind not in ("csv", {"integer": "number"}.get(label_type, label_type)):
            continue
        elif name in named:
            named[name].count += seen.count
        else:
            named[name] = Seen(seen.count, seen.file, seen.row)
    return named


def _refuse_markers(names: dict[str, dict[str, Seen]], ledger: Ledger) -> None:
    """Note rows marked as having no label, by -1 beside 0 or several classes, and take the mark from the classes.

    {-1, 1} alone is a way to write two classes, and so is -1 beside other negative numbers.
    """
    known = {int(name) for named in names.values() for name in named} - {int(name) for name in NO_LABEL}
    if not known or min(known) < 0 or known == {1}:
        return
    for split, named in names.items():
        for name in NO_LABEL:
            if name in named:
                seen = named.pop(name)
                line = (
                    f"data.{split}: {seen.file.name} row {seen.row}: label {name} marks rows without a label; "
                    "leave them out (if it is a class, give it a name in letters)"
                )
                ledger.note(("no label", split, name), line, seen.count)


def _refuse_lookalikes(named: dict[str, Seen], ledger: Ledger) -> None:
    """Note training classes that people cannot tell apart: `a` and `a ` would each get half of the rows."""
    first: dict[str, str] = {}
    for name in named:
        other = first.setdefault(unicodedata.normalize("NFC", " ".join(name.split())), name)
        if other != name:
            seen = named[name]
            line = (
                f"data.train: {seen.file.name} row {seen.row}: label {ascii(name)} differs from {ascii(other)} in white "
                "space or Unicode form only; write them alike"
            )
            ledger.note(("lookalike", seen.file.path, name), line, seen.count)


def _refuse_places(splits: list[Split], labels: list[str], ledger: Ledger) -> None:
    """Note lists of 0 and 1 with a place for each class: as names of classes they would train two, "0" and "1"."""
    if labels and (set(labels) <= {"0", "1"} or set(labels) <= {"false", "true"}):
        for split in splits:
            if split.repeated is not None:
                file, row = split.repeated
                line = (
                    f"data.{split.name}: {file.name} row {row}: the list has a place for each class; "
                    "multi-label needs the names of the row's classes, such as [\"a\", \"c\"] for [1, 0, 1]"
                )
                ledger.note(("places", split.name), line)


def _judge_classes(
    splits: list[Split], names: dict[str, dict[str, Seen]], labels: list[str], config: Config, ledger: Ledger
) -> None:
    """Note too few classes, and classes that are in the validation rows only.

    Says nothing where not all training labels are known, because they cannot be read or are of mixed types.
    """
    if not splits[0].complete or splits[0].rows == 0 or any(key[0] in ("mixed", "kind") for key in ledger.lines):
        return
    least = 1 if config.model.task == "multi-label" else 2
    if len(labels) < least and not ledger.lines:
        found = f"only the class {labels[0]!r}" if labels else "no label"
        line = f"data.train: {found} in column {config.data.columns.label!r}; {config.model.task} needs {least} or more"
        ledger.note(("classes",), line)
    for name, seen in names.get("validation", {}).items():
        if name not in names["train"]:
            near = get_close_matches(name, labels, 1)
            hint = f", such as {near[0]!r}" if near else ""
            line = (
                f"data.validation: {seen.file.name} row {seen.row}: label {name!r} is out of range: not among the "
                f"{len(labels)} classes of data.train{hint}"
            )
            ledger.note(("unknown", name), line, seen.count)


def _judge_rows(splits: list[Split], config: Config, ledger: Ledger) -> None:
    """Note an empty split, and one with fewer training rows than workers, where all files could be read."""
    workers = config.scaling.workers
    for split in splits:
        if split.complete and split.rows == 0:
            count = f"{len(split.files)} files" if len(split.files) > 1 else split.files[0].name
            ledger.note(("rows", split.name), f"data.{split.name}: no rows in {count}; at least one is needed")
        elif split.complete and split.name == "train" and split.rows < workers:
            line = f"data.train: {split.rows} rows for scaling.workers {workers}; each worker needs one or more"
            ledger.note(("rows", split.name), line)
