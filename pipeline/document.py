"""YAML text to plain data with the line of each value, and plain data back to YAML text.

Scalars are read by the YAML 1.2 core rules. PyYAML follows 1.1, where `no` and `off` are booleans, `5e-4` is text,
`010` is 8, `1:30` is 90 and `2024-01-01` is a date: each of them a training job that quietly differs from what is
written. Here only `true` and `false` are booleans, so `mixed_precision: no` is the text "no", and `5e-4` is a number.
"""

import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

TAG = "tag:yaml.org,2002:"
NULL = re.compile(r"(?:~|null|Null|NULL|)$")
BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
INT = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*$")
FLOAT = re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$")
RESOLVERS = [
    (TAG + "null", NULL, ["~", "n", "N", ""]),
    (TAG + "bool", BOOL, list("tTfF")),
    (TAG + "int", INT, list("-+0123456789")),
    (TAG + "float", FLOAT, list("-+.0123456789")),
]
# Stands for a value that is a problem of the text already, so that nothing else is said of it.
WRONG = object()
ALIAS = "an alias (*name) is not supported; put a value that begins with * in quotes"


@dataclass
class Document:
    """What a text holds. `lines` has the line of each value by its path; `problems` are (line, what is wrong)."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (as PyYAML has it)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # One value in one place: a job that is read by people before it costs GPU hours has no use for aliases, and
        # without them neither a value that holds itself nor one that grows without end can be written.
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, ALIAS, event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # In any other style PyYAML writes these line breaks as they are and reads them back as a space.
        style = '"' if any(character in data for character in "\x85\u2028\u2029") else None
        return self.represent_scalar(TAG + "str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)


for _tag, _pattern, _first in RESOLVERS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    # The dumper keeps the rules of YAML 1.1 as well, so that text which either version would read as something else
    # is written in quotes and other tools read the stored configuration as we do.
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def contents(path: str) -> tuple[bytes, str | None]:
    """The bytes of a file, and why it cannot be read."""
    try:
        return pathlib.Path(path).read_bytes(), None
    except FileNotFoundError:
        return b"", "no such file"
    except OSError as error:
        return b"", (error.strerror or "cannot be read").lower()
    except ValueError:  # a NUL, or half a character
        return b"", "holds a character that no path can have"


def read(text: str | bytes) -> Document:
    """Read one YAML document. Never raises for wrong text: what is wrong stands in `problems`.

    Keys are the text as written, so `{1: 2.0}` has the key "1". Duplicate keys, aliases and tags of any language's
    objects are problems.
    """
    document = Document()
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        if node is not None:
            data = _build(node, (), document)
            document.data = None if data is WRONG else data
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ALIAS if "alias" in (error.context or "") else error.problem or "cannot be read"
        document.problems.append((mark.line + 1 if mark else 1, what if what == ALIAS else f"not valid YAML: {what}"))
    except yaml.YAMLError as error:
        document.problems.append((1, f"not valid YAML: {str(error).splitlines()[0]}"))
    except RecursionError:
        document.problems.append((1, "nested too deeply"))
    return document


def write(data: Any) -> str:
    """YAML of plain data, keys in their order; `read` gives the same data back.

    Raises yaml.representer.RepresenterError for objects that are no plain data.
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096, default_flow_style=False)


def _build(node: yaml.Node, path: Path, document: Document) -> Any:
    line = node.start_mark.line + 1
    document.lines[path] = line
    kind = node.tag.removeprefix(TAG)
    if isinstance(node, yaml.MappingNode) and kind == "map":
        return _mapping(node, path, document)
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        items = [_build(item, (*path, index), document) for index, item in enumerate(node.value)]
        return [item for item in items if item is not WRONG]
    if isinstance(node, yaml.ScalarNode) and kind in ("null", "bool", "int", "float", "str"):
        try:
            return _scalar(kind, node.value)
        except ValueError:
            document.problems.append((line, f"is not of the type !!{kind}"))
            return WRONG
    document.problems.append((line, f"the tag {node.tag.replace(TAG, '!!')} is not supported"))
    return WRONG


def _mapping(node: yaml.MappingNode, path: Path, document: Document) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            document.problems.append((line, "a key must be a single word"))
            continue
        name = ".".join(map(str, (*path, key.value)))
        if key.value in result:
            first = document.lines[(*path, key.value)]
            document.problems.append((line, f"{name} is given twice, first on line {first}"))
            continue
        built = _build(value, (*path, key.value), document)
        if built is not WRONG:
            result[key.value] = built
        document.lines[(*path, key.value)] = line
    return result


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        if not BOOL.match(text):  # an explicit !!bool of another text
            raise ValueError(text)
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))  # float() knows them without YAML's dot
    return text
