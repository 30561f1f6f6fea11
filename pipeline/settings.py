"""Read a job's configuration: defaults, then a YAML file, then environment variables, then the command line.

    load("configs/mrpc.yaml", ["training.epochs=3"], os.environ)

Every problem of all four is reported at once, each with the setting, the value found, where it was found and what
would be right. Settings in the environment have double underscores: `PIPELINE__TRAINING__EPOCHS=5`. Variables with
single ones, such as PIPELINE_DATA_DIR, are none.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

from pydantic import ValidationError

from pipeline import document, fields
from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.redaction import redacted, shown, texts

PREFIX = "PIPELINE__"
COMMAND_LINE = "command line"
PLACEHOLDER = re.compile(r"REPLACE_ME|<[^<>\n]+>")
# Special tokens such as "<s>" are real values of a model's own configuration.
PLACEHOLDER_IN_MODEL_CONFIG = re.compile(r"REPLACE_ME")

Origin = Callable[[document.Path], str]


def load(path: str | None, overrides: Sequence[str], environ: Mapping[str, str]) -> Config:
    """The configuration from a file (None: defaults only), `PIPELINE__...` variables and `key.sub=value` overrides.

    Raises UserError with all problems, one line each.
    """
    layers = _Layers()
    if path is not None:
        text, problem = document.contents(path) if path else (b"", "found '', expected the path of a YAML file")
        if problem is None:
            layers.file(text, path)
        else:
            layers.fail(f"{(path if path.isprintable() else repr(path)) or '-c'}: {problem}")
    layers.environment(environ)
    layers.command_line(overrides)
    return layers.config()


def loads(text: str | bytes, name: str) -> Config:
    """The configuration from YAML text alone, such as a run's stored `config.yaml`; `name` stands in messages.

    Raises UserError with all problems.
    """
    layers = _Layers()
    layers.file(text, name)
    return layers.config()


def dump(config: Config) -> str:
    """The whole configuration as YAML, every setting in the order of the models; `loads` gives an equal one back."""
    return document.write(config.model_dump())


class _Layers:
    """Values collected from all sources, the later ones over the earlier, with the origin of each."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[fields.Name, Origin] = {}
        self.problems: list[str] = []
        self.incomplete = False

    def fail(self, problem: str) -> None:
        """Note that a source could not be read, so that rules between settings are not judged on half of them."""
        self.problems.append(problem)
        self.incomplete = True

    def file(self, text: str | bytes, name: str) -> None:
        found = document.read(text)
        for line, problem in found.problems:
            self.fail(f"{name}:{line}: {problem}")
        if found.data is None:  # empty, or all of it comments: the defaults
            return
        if not isinstance(found.data, dict):
            self.fail(f"{name}: holds {shown(found.data)}, expected a mapping of sections")
            return

        def origin(path: document.Path) -> str:
            while path not in found.lines:
                path = path[:-1]
            return f"{name}:{found.lines[path]}"

        for key, value in found.data.items():
            if value is not None or (key,) not in fields.known():  # a section whose settings are all commented out
                self._put((key,), value, origin)

    def environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            if variable.startswith(PREFIX):
                # Upper case loses how a class or a resource is spelt, so a mapping is given as a whole here.
                name = tuple(variable.removeprefix(PREFIX).lower().split("__"))
                self._set(name, environ[variable], f"environment {variable}")

    def command_line(self, overrides: Sequence[str]) -> None:
        for override in overrides:
            key, equals, text = override.partition("=")
            if not equals or not key.strip():
                found = shown(override)
                self.fail(f"{COMMAND_LINE}: found {found}, expected key=value (a configuration file goes after -c)")
                continue
            name = tuple(key.strip().split("."))
            leaf = next((name[:n] for n in range(1, len(name)) if _holds_names(name[:n])), None)
            if leaf is None:
                self._set(name, text, COMMAND_LINE)
            else:
                self._set_inside(leaf, name[len(leaf) :], text)

    def _set(self, name: fields.Name, text: str, origin: str) -> None:
        if name not in fields.known():
            self._unknown(name, origin)
            return
        value, problem = _parse(text, fields.known()[name].annotation)
        if problem is not None:
            self.fail(f"{'.'.join(name)}: {problem} ({origin})")
        else:
            self._put(name, value, lambda _: origin)

    def _set_inside(self, leaf: fields.Name, rest: Sequence[str], text: str) -> None:
        """One entry of a mapping, as in `model.config.num_hidden_layers=2`; the other entries stay."""
        entry = fields.inside(fields.known()[leaf].annotation, dict)
        value, problem = _parse(text, entry)
        if problem is not None:
            self.fail(f"{'.'.join((*leaf, *rest))}: {problem} ({COMMAND_LINE})")
            return
        current = self._get(leaf)
        keys = list(rest) if entry is Any else [".".join(rest)]  # names of classes and resources may hold dots
        self._put(leaf, _with(current if isinstance(current, dict) else {}, keys, value), lambda _: COMMAND_LINE)

    def _put(self, name: fields.Name, value: Any, origin: Origin) -> None:
        if name not in fields.known():
            self._unknown(name, origin(name))
        elif not fields.is_section(fields.known()[name].annotation):
            self.origins[name] = origin
            self.values = _with(self.values, list(name), value)
        elif isinstance(value, dict):
            for key, inner in value.items():
                self._put((*name, key), inner, origin)
        else:
            known = ", ".join(item[-1] for item in fields.known() if item[:-1] == name)
            self.problems.append(
                f"{'.'.join(name)}: found {shown(value)} ({origin(name)}), expected a mapping of settings: {known}"
            )

    def _get(self, name: fields.Name) -> Any:
        value: Any = self.values
        for key in name:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _unknown(self, name: fields.Name, origin: str) -> None:
        dotted = ".".join(name)
        # The value stays unsaid: a key that does not exist may well be `storage.secret_key`.
        self.problems.append(f"{redacted(dotted)}: no such setting ({origin}), {fields.nearest(dotted)}")

    def config(self) -> Config:
        """The validated whole.

        Raises UserError with every problem of every source.
        """
        config = None
        for name, origin in self.origins.items():
            self.problems.extend(_improper(name, self._get(name), origin))
        try:
            # Strict: "5" is no integer and true is no 1. In a lax reading both pass, and `epochs: true` trains one.
            config = Config.model_validate(self.values, strict=True)
        except ValidationError as error:
            self.problems.extend(self._explain(error))
        if self.problems or config is None:
            # A quoted key can hold a line break; a problem is one line.
            raise UserError(*dict.fromkeys(problem.replace("\n", "\\n") for problem in self.problems))
        return config

    def _explain(self, error: ValidationError) -> Iterator[str]:
        """pydantic's errors in words. Of a union it lists one error per alternative; a setting needs only one."""
        wrong: dict[document.Path, list[str]] = {}
        for item in error.errors():
            path, value = _locate(self.values, item["loc"])
            cause = item.get("ctx", {}).get("error")
            if not path:  # a rule between settings, which names them itself; ValueError(*problems) is several
                if not self.incomplete:
                    yield from map(str, cause.args if isinstance(cause, ValueError) else [item["msg"]])
                continue
            said = wrong.setdefault(path, [])
            if isinstance(cause, ValueError | AssertionError):
                said.append(f"found {shown(value)} ({self._origin(path)}): {cause}")
        for path, said in wrong.items():
            if any(other != path and other[: len(path)] == path for other in wrong):
                continue  # an item of it is wrong, which says more
            yield f"{'.'.join(map(str, path))}: {said[0] if said else self._expected(path)}"

    def _expected(self, path: document.Path) -> str:
        value: Any = self.values
        annotation: Any = Config
        metadata: list[Any] = []
        for n, key in enumerate(path, 1):
            field = fields.known().get(tuple(map(str, path[:n])))
            annotation, metadata = (
                (field.annotation, field.metadata) if field else (fields.inside(annotation, type(value)), [])
            )
            value = value[key]
        number_for_text = isinstance(value, bool | int | float) and fields.accepts(annotation, str)
        hint = "; put it in quotes" if number_for_text else ""
        return f"found {shown(value)} ({self._origin(path)}), expected {fields.allowed(annotation, metadata)}{hint}"

    def _origin(self, path: document.Path) -> str:
        return next(origin(path) for name, origin in self.origins.items() if path[: len(name)] == name)


def _holds_names(name: fields.Name) -> bool:
    return name in fields.known() and fields.accepts(fields.known()[name].annotation, dict)


def _parse(text: str, annotation: Any) -> tuple[Any, str | None]:
    """A value typed on a command line or in a variable, and what is wrong with it.

    It is read as YAML, but where a setting takes any text, what YAML would make something else of is that text:
    `run.name=2026`, `data.train=*.csv`, `data.delimiter=|`. Text in braces is a mapping where one is possible.
    """
    found = document.read(text)
    mapping = text.lstrip().startswith("{") and fields.accepts(annotation, dict)  # strategy.config='{...}'
    if fields.accepts(annotation, str) and not mapping:
        none = found.data is None and (not text or document.NULL.match(text)) and fields.accepts(annotation, NoneType)
        containers = isinstance(found.data, list) and fields.accepts(annotation, list)
        block = text.startswith(("|", ">"))  # the head of a block, in a file; here the character itself
        if found.problems or block or not (isinstance(found.data, str) or none or containers):
            return text, None
    return found.data, found.problems[0][1] if found.problems else None


def _with(mapping: dict[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of the mapping with one value set below it."""
    inner = mapping.get(keys[0])
    below = _with(inner if isinstance(inner, dict) else {}, keys[1:], value) if len(keys) > 1 else value
    return {**mapping, keys[0]: below}


def _locate(values: Any, location: tuple[str | int, ...]) -> tuple[document.Path, Any]:
    """The path of an error in the values, without the names of a union's alternatives that pydantic puts into it."""
    path: list[str | int] = []
    for key in location:
        if (isinstance(values, dict) and key in values) or (isinstance(values, list) and isinstance(key, int)):
            values = values[key]  # type: ignore[index]
            path.append(key)
    return tuple(path), values


def _improper(name: fields.Name, value: Any, origin: Origin) -> Iterator[str]:
    """Values of the right type that must not be used: credentials and what a template left in."""
    pattern = PLACEHOLDER_IN_MODEL_CONFIG if name == ("model", "config") else PLACEHOLDER
    for path, text in texts(value, name):
        if text != text.encode(errors="replace").decode():
            yield f"{'.'.join(map(str, path))}: found {shown(text)} ({origin(path)}), which holds half a character"
            continue
        dotted = redacted(".".join(map(str, path)))
        if redacted(text) != text:
            yield (
                f"{dotted}: holds credentials ({origin(path)}), which would end up in logs and in the stored "
                "configuration; give them in the environment, a profile or a workload identity"
            )
        elif left := pattern.search(text):
            yield f"{dotted}: found {shown(text)} ({origin(path)}), placeholder left in: {left[0]}"
