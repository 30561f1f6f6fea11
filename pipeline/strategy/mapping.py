"""Files of the strategy that hold a mapping of settings, read on the driver: workers may be elsewhere, and a run keeps
what it used."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline import document, fields
from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.redaction import shown

Mapping = dict[str, Any]
DEEPEST = 20


def read_mapping(file: str, field: str) -> Mapping:
    """A JSON or YAML file that holds a mapping.

    Raises:
        UserError: it is missing, cannot be read or holds something else.
    """
    if not file.strip():
        raise UserError(f"{field}: is empty; expected the path of a file")
    # Of a user that is unknown here, os.path leaves "~name" as it stands, and pathlib raises.
    data, problem = document.contents(os.path.expanduser(file))  # noqa: PTH111
    if problem is not None:
        raise UserError(f"{field}: {shown(file)[1:-1]}: {problem}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{field}: {file}: cannot be read: {error}") from error
    if text.lstrip().startswith("{") and Path(file).suffix.lower() in (".json", ""):
        value = _json(text, f"{field}: {file}")
    else:
        found = document.read(text)
        if found.problems:
            raise UserError(*(f"{field}: {file}:{line}: {problem}" for line, problem in found.problems))
        value = found.data
    if not isinstance(value, dict):
        raise UserError(f"{field}: {file} holds no mapping of settings")
    if _is_deeper(value, DEEPEST):
        raise UserError(f"{field}: {file} is nested more than {DEEPEST} deep, and no settings are")
    return value


def _is_deeper(value: Any, most: int) -> bool:
    """Whether mappings and lists lie more than `most` deep; level by level, as what follows goes into them."""
    level = [value]
    for _ in range(most):
        nodes = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        level = [inner for node in nodes for inner in node]
    return any(isinstance(node, dict | list) for node in level)


def _json(text: str, place: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> Mapping:
        names = [key for key, _ in pairs]
        for key in names:
            if names.count(key) > 1:
                raise UserError(f"{place}: {shown(key)} is given twice in one mapping")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}:{error.lineno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UserError(f"{place}: not valid JSON: {str(error).split(';')[0].split(':')[0]}") from error


def validated(config: Config, place: str, **sections: Mapping) -> Config:
    """The configuration with other sections; `place` begins each message.

    Raises:
        UserError: they are not possible; all problems, with the value found.
    """
    try:
        return Config.model_validate(config.model_dump() | sections)
    except ValidationError as error:
        problems = []
        for item in error.errors():
            cause = item.get("ctx", {}).get("error")
            if isinstance(cause, ValueError):
                problems += [f"{place}{problem}" for problem in cause.args]
                continue
            name = tuple(map(str, item["loc"][:2]))
            known = fields.known().get(name)
            words = fields.allowed(known.annotation, known.metadata) if known else item["msg"]
            problems.append(f"{place}{'.'.join(name)}: found {shown(item['input'])}, expected {words}")
        raise UserError(*dict.fromkeys(problems)) from error
