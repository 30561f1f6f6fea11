"""The records that a run keeps beside its checkpoints, read back in the shape in which they were written.

Whatever else is found in one of these files, by whom it may have been changed, is one error that names the file.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from pipeline import settings
from pipeline.config import Config
from pipeline.data.facts import Facts
from pipeline.errors import UserError
from pipeline.redaction import shown
from pipeline.result import Result
from pipeline.storage import Store

OWNER, CONFIG, DATA, RESULT, METRICS = "owner.json", "config.yaml", "data.json", "result.json", "metrics.jsonl"
ATTEMPT = re.compile(r"attempts/(\d+)\.json")
# Without these a file is no configuration of a run; other sections may have come later and have their defaults then.
SECTIONS = ("run", "model", "data", "training")


class _Owner(BaseModel):
    model_config = ConfigDict(strict=True)
    owner: str
    started: str


class _Evaluation(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)
    step: int
    epoch: float


class _Checkpoint(BaseModel):
    size: Annotated[int, Field(ge=0)]
    sha256: str


class _Manifest(BaseModel):
    model_config = ConfigDict(strict=True)
    world_size: Annotated[int, Field(ge=1)]
    files: Annotated[dict[str, _Checkpoint], Field(min_length=1)]


class _State(BaseModel):
    model_config = ConfigDict(strict=True)
    best_step: int | None


_TIGHTER: dict[str, Any] = {
    "steps": Annotated[int, Field(ge=1)],
    "epochs": Annotated[float, Field(gt=0, allow_inf_nan=False)],
    "metrics": dict[str, float | None],  # null stands for a metric that is NaN
    "history": list[_Evaluation],
}
_TYPES = get_type_hints(Result)
_SHAPE: dict[str, Any] = {
    item.name: (_TIGHTER.get(item.name, _TYPES[item.name]), ...) for item in fields(Result) if item.default is MISSING
}
_Result = create_model("_Result", __config__=ConfigDict(strict=True), **_SHAPE)


def damaged(store: Store, name: str, words: str) -> UserError:
    """The error for a file of a run that is not as it was written."""
    return UserError(f"{store.uri}/{name}: is damaged: {words}; restore it, or take another run.name")


def parsed(store: Store, name: str, content: bytes, shape: type[BaseModel] | None = None) -> dict[str, Any]:
    """The mapping in a JSON or YAML file of a run, which has to be of the shape.

    Raises:
        UserError: the file is damaged.
    """
    try:
        found = yaml.safe_load(content) if name.endswith(".yaml") else json.loads(content)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise damaged(store, name, str(error).partition("\n")[0]) from error
    if not isinstance(found, dict):
        raise damaged(store, name, f"expected a mapping, found {type(found).__name__}")
    if shape is not None:
        try:
            shape.model_validate(found)
        except ValidationError as error:
            raise damaged(store, name, _first(error)) from error
    return found


def _first(error: ValidationError) -> str:
    item = error.errors()[0]
    place = ".".join(map(str, item["loc"]))
    if item["type"] == "missing":
        return f"has no {place!r}"
    return f"{place}: found {shown(item['input'])}; {item['msg'][:1].lower()}{item['msg'][1:]}"


def _read(store: Store, name: str, shape: type[BaseModel] | None = None) -> dict[str, Any] | None:
    found = store.read_tagged(name)
    return parsed(store, name, found[0], shape) if found else None


def owner(store: Store) -> dict[str, Any] | None:
    """`owner.json`, None if there is none. Raises UserError if it is damaged."""
    return _read(store, OWNER, _Owner)


def result(store: Store) -> tuple[dict[str, Any], str] | None:
    """`result.json` and its tag, None if there is none. Raises UserError if it is damaged."""
    found = store.read_tagged(RESULT)
    return (parsed(store, RESULT, found[0], _Result), found[1]) if found else None


def final(store: Store) -> dict[str, Any] | None:
    """`result.json`, None while there is none or a newer attempt goes on from it. Raises UserError if it is damaged."""
    found = result(store)
    return found[0] if found and is_final(store, found[0]) else None


def is_final(store: Store, found: dict[str, Any]) -> bool:
    """Whether no newer attempt than that of the `result.json` goes on from it."""
    return bool(found["attempts"] >= max(attempts(store), default=0))


def manifest(store: Store, name: str, content: bytes) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises UserError if it is damaged."""
    return parsed(store, name, content, _Manifest)


def best_step(store: Store, name: str) -> int | None:
    """The step of the best evaluation so far, as a `state.json` has it. Raises UserError if it is damaged."""
    step: int | None = parsed(store, name, store.read(name), _State)["best_step"]
    return step


def lines(store: Store, name: str) -> Iterator[dict[str, Any]]:
    """The lines of a part of the metrics, each with its step. Raises UserError if the part is damaged."""
    number = 0
    for number, text in enumerate(store.read(name).splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise damaged(store, name, f"line {number}: {error}") from error
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            raise damaged(store, name, f"line {number}: has no step")
        yield line
    if not number:  # a recorder writes when it has lines
        raise damaged(store, name, "is empty")


def attempts(store: Store) -> dict[int, str]:
    """The files of attempts by number, in order; what else lies in the folder, say of an editor, is none."""
    names = [entry.name for entry in store.list("attempts")]
    return dict(sorted((int(found[1]), name) for name in names if (found := ATTEMPT.fullmatch(name))))


def attempt(store: Store, name: str) -> dict[str, Any] | None:
    """The file of an attempt. Raises UserError if it is damaged."""
    return _read(store, name)


def task(store: Store) -> str:
    """`model.task` of the stored configuration, which may else be of another version. Raises UserError if damaged."""
    model = (_read(store, CONFIG) or {}).get("model")
    found = model.get("task") if isinstance(model, dict) else None
    if not isinstance(found, str):
        raise damaged(store, CONFIG, f"model.task: found {shown(found)}")
    return found


def configuration(store: Store) -> Config | None:
    """The stored configuration, None if there is none. What an older version did not have has its default.

    Raises:
        UserError: it is damaged, or has what this version does not know.
    """
    content = store.read_tagged(CONFIG)
    if content is None:
        return None
    sections = parsed(store, CONFIG, content[0])
    for name in SECTIONS:
        if name not in sections:
            raise damaged(store, CONFIG, f"has no {name!r}")
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise damaged(store, CONFIG, f"{name}: found {shown(section)}, expected a mapping of settings")
    try:
        return settings.loads(content[0], CONFIG)
    except UserError as error:
        first, *more = error.problems
        others = f" (and {len(more)} more)" if more else ""
        raise UserError(
            f"{store.uri}/{CONFIG}: is damaged, or of another version of this program: {first}{others}; restore it, or "
            "take another run.name"
        ) from error


def facts(store: Store) -> Facts | None:
    """What is kept of the data, None if there is nothing. Raises UserError if it is damaged."""
    found = _read(store, DATA)
    if found is None:
        return None
    try:
        return Facts.from_json(found)
    except (LookupError, TypeError, AttributeError) as error:
        raise damaged(store, DATA, f"{type(error).__name__}: {error}") from error
