"""What is known about the data before training: files, rows and the one mapping of labels to class numbers."""

from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.data.files import DataFile


@dataclass(frozen=True)
class Facts:
    """The outcome of `inspect`. Splits are `train` and, if it is configured, `validation`; the run keeps it.

    `rows_per_file` goes with `files`. `labels` holds the class names in the order of their numbers: whole numbers by
    value, false before true, texts by code point; none for regression. `label_counts` counts rows per label in each
    split. `label_type` is string, integer, boolean, or float for regression,
    none for causal-lm. `empty_texts` counts rows whose text, or
    second text, has no characters: they are trained on as they are.
    """

    files: dict[str, list[DataFile]]
    rows: dict[str, int]
    rows_per_file: dict[str, list[int]]
    labels: list[str]
    label_counts: dict[str, dict[str, int]]
    label_type: str
    empty_texts: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON's own types."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Facts":
        """Back from `to_json`, also after a trip through JSON text."""
        files = {split: [DataFile(**file) for file in files] for split, files in value["files"].items()}
        return cls(**{**value, "files": files})
