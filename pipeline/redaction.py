"""Values as they may be shown: short, on one line, and never a secret."""

import re
from collections.abc import Iterator
from typing import Any

# A password may hold slashes (AWS secret keys do), so the second form looks past one, but not for a port and a path.
CREDENTIALS = re.compile(
    r"://[^/?#\s]*@|://[^/@\s]+:(?!\d+(?:/|$))[^@\s]*@|[?&][^=&]*(?:secret|password|token|signature|access_?key)[^=&]*=",
    re.IGNORECASE,
)
HIDDEN = "(a value with credentials)"


def redacted(text: str) -> str:
    """The text itself, or a word in its place where it is a URI with a user, password, token or signature in it."""
    return HIDDEN if CREDENTIALS.search(text) else text


def shown(value: Any) -> str:
    """A plain value for a message, as one would write it, cut to 80 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if any(CREDENTIALS.search(text) for _, text in texts(value, ())):
        return HIDDEN
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def texts(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """All texts in nested lists and mappings, each with the path to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts(inner, (*path, index))
