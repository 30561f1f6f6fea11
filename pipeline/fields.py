"""The settings of a job as names and words: which exist, what each allows, which one a wrong name may have meant.

Error messages (pipeline/settings.py) and docs/configuration.md (pipeline/reference.py) say it in the same words.
"""

import difflib
from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from pipeline.config import Config
from pipeline.section import Section

Name = tuple[str, ...]


def is_section(annotation: Any) -> bool:
    """Whether a field holds further settings rather than a value."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


def walk(model: type[Section] = Config, prefix: Name = ()) -> Iterator[tuple[Name, FieldInfo]]:
    """All fields below a model, sections before what they hold, in the order of their definition."""
    for name, field in model.model_fields.items():
        yield (*prefix, name), field
        if is_section(field.annotation):
            section: Any = field.annotation
            yield from walk(section, (*prefix, name))


@cache
def known() -> dict[Name, FieldInfo]:
    """Every section and setting by its path."""
    return dict(walk())


def nearest(name: str) -> str:
    """What to say after an unknown dotted name: the settings that may have been meant, or those that exist there."""
    path = tuple(name.lower().replace("-", "_").split("."))
    parent, last = path[:-1], path[-1]
    if parent in known() and not is_section(known()[parent].annotation):
        return f"{'.'.join(parent)} is a single value"
    siblings = {item[-1]: ".".join(item) for item in known() if item[:-1] == parent}
    elsewhere = [item for item in known() if item[:-1] != parent]
    found = (
        [siblings[match] for match in difflib.get_close_matches(last, siblings, 1, 0.8)]
        or [".".join(item) for item in elsewhere if item[-1] == last]
        or [siblings[word] for word in siblings if len(last) > 3 and last in word]
        or [".".join(item) for item in elsewhere if len(last) > 3 and last in item[-1]]
        or [siblings[match] for match in difflib.get_close_matches(last, siblings, 1, 0.6)]
    )
    if not siblings:  # the section is unknown as well: a name is near if the whole of it is
        found = difflib.get_close_matches(".".join(path), map(".".join, known()), 1, 0.7) or found
    if found:
        return f"did you mean {' or '.join(found)}?"
    if siblings:
        return f"known here: {', '.join(siblings)}"
    return f"the sections are {', '.join(item[0] for item in known() if len(item) == 1)}"


def accepts(annotation: Any, kind: type) -> bool:
    """Whether any value of this plain type can be right for the annotation; a choice of words does not accept `str`."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return any(accepts(arm, kind) for arm in get_args(annotation))
    return annotation is kind or get_origin(annotation) is kind or (annotation is NoneType and kind is NoneType)


def inside(annotation: Any, container: type) -> Any:
    """The annotation of what a list or dict field holds; Any if it is neither."""
    if get_origin(annotation) in (Union, UnionType):
        arms = [inside(arm, container) for arm in get_args(annotation)]
        return next((arm for arm in arms if arm is not Any), Any)
    return get_args(annotation)[-1] if get_origin(annotation) is container else Any


def allowed(annotation: Any, metadata: list[Any] | None = None) -> str:
    """What a setting takes, in words: "'epoch' or an integer of at least 1"."""
    words = _alternatives(annotation, metadata or [])
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _alternatives(annotation: Any, metadata: list[Any]) -> list[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for extra in arguments[1:]:
            metadata = [*metadata, *(extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return _alternatives(arguments[0], metadata)
    if origin in (Union, UnionType):
        return [word for arm in arguments for word in _alternatives(arm, metadata)]
    if origin is Literal:
        return [repr(value) for value in arguments]
    if origin is list:
        return [f"a list of {_plural(arguments[0])}"]
    if origin is dict:
        return ["a mapping" if arguments[1] is Any else f"a mapping of names to {_plural(arguments[1])}"]
    if annotation is int:
        return [f"an integer{_range(metadata)}"]
    if annotation is float:
        return [f"a number{_range(metadata)}"]
    if annotation is bool:
        return ["true", "false"]
    if annotation is str:
        return [_text(metadata)]
    if annotation is NoneType:
        return ["null"]
    if is_section(annotation):
        return ["a mapping of settings"]
    return ["any value"]


def _plural(annotation: Any) -> str:
    return {str: "texts", float: "numbers", int: "integers"}.get(annotation, "values")


def _text(metadata: list[Any]) -> str:
    least = max((item.min_length for item in metadata if isinstance(item, MinLen)), default=0)
    most = min((item.max_length for item in metadata if isinstance(item, MaxLen)), default=None)
    if most is None:
        return "non-empty text" if least else "text"
    return "a single character" if (least, most) == (1, 1) else f"text of {least} to {most} characters"


def _range(metadata: list[Any]) -> str:
    bounds = {type(item): item for item in metadata}
    if Ge in bounds and Le in bounds:
        return f" from {bounds[Ge].ge} to {bounds[Le].le}"
    words = [f"at least {bounds[Ge].ge}"] if Ge in bounds else []
    words += [f"above {bounds[Gt].gt}"] if Gt in bounds else []
    words += [f"at most {bounds[Le].le}"] if Le in bounds else []
    words += [f"below {bounds[Lt].lt}"] if Lt in bounds else []
    return (" of " if words and words[0].startswith("at") else " " if words else "") + " and ".join(words)
