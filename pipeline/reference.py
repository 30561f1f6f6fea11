"""Write docs/configuration.md from the configuration's models.

    python -m pipeline.reference > docs/configuration.md

A test holds the file to what this prints.
"""

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from pipeline import document, fields
from pipeline.config import Config
from pipeline.section import Section
from pipeline.settings import dump

HEAD = """\
<!-- Generated from pipeline/config.py by `python -m pipeline.reference > docs/configuration.md`; change it there. -->

# Configuration

A job is one YAML file, given with `-c`; each setting below may be left out. `pipeline check -c FILE` says what is
wrong with one without training.

## Where values come from

From the weakest to the strongest:

1. the defaults below;
2. the file: `pipeline train -c configs/mrpc.yaml`;
3. environment variables: `PIPELINE__TRAINING__EPOCHS=5`, in capitals, two underscores before each part;
4. the command line: `pipeline train training.epochs=5 data.columns.text_pair=sentence2`.

Values in variables and on the command line are read as YAML: `null`, `true`, `[a.csv, b.csv]`, `{CPU: 4}`, `5e-4`.
Where a setting takes any text, it is taken as it stands: `run.name=2026`, `data.train=*.csv`. A list or mapping
replaces the whole earlier one; on the command line one entry can be set alone: `model.config.num_hidden_layers=2`.

YAML is read by its 1.2 rules: only `true` and `false` are booleans (`mixed_precision: no` is the word "no"), and `5e-4`
is a number. Numbers in quotes are texts and are refused where a number is wanted. Aliases (`*name`) and duplicate keys
are refused, unknown keys too, with the name that was probably meant.

Credentials have no place here: a URI with a user, password or token in it is refused, because the resolved
configuration is stored with each run. They come from the environment, a profile or a workload identity. A placeholder
that was left in (`REPLACE_ME`, `<bucket>`) is refused as well.

## All defaults
"""


def reference() -> str:
    """The whole of docs/configuration.md."""
    parts = [HEAD, f"```yaml\n{dump(Config())}```\n"]
    for name, field in fields.known().items():
        if fields.is_section(field.annotation):
            parts.append("\n".join(_section(name, field.annotation)))
    return "\n".join(parts)


def _section(name: fields.Name, model: Any) -> Iterator[str]:
    dotted = ".".join(name)
    yield f"{'#' * (len(name) + 1)} `{dotted}`\n"
    yield f"{(model.__doc__ or '').strip()}\n"
    yield "| Setting | Allowed | Default | What it is |"
    yield "|---|---|---|---|"
    for key, field in model.model_fields.items():
        if fields.is_section(field.annotation):
            yield _row(f"`{dotted}.{key}`", "its own settings, below", "", field.annotation.__doc__ or "")
        else:
            yield _row(f"`{dotted}.{key}`", _allowed(field), f"`{_default(field)}`", field.description or "")
    yield ""


def _allowed(field: FieldInfo) -> str:
    return fields.allowed(field.annotation, field.metadata)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    assert not isinstance(value, Section)
    return document.write({"value": value}).removeprefix("value: ").strip()


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(reference(), end="")
