"""docs/configuration.md says what the program takes."""

from pathlib import Path

import pytest

from pipeline import fields
from pipeline.reference import reference

PAGE = Path(__file__).parents[2] / "docs/configuration.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text() == reference(), "run: python -m pipeline.reference > docs/configuration.md"


def test_every_setting_stands_in_it_with_a_description() -> None:
    rows = {line.split("`")[1]: line for line in reference().splitlines() if line.startswith("| `")}
    assert set(rows) == {".".join(name) for name in fields.known() if len(name) > 1}
    assert [row for row in rows.values() if row.rstrip(" |").endswith("`")] == []


@pytest.mark.parametrize(
    "row",
    [
        "| `training.epochs` | an integer of at least 1 | `2` | Passes over the training rows. |",
        "| `training.mixed_precision` | 'no', 'bf16' or 'fp16' | `'no'` | fp16 needs a GPU. |",
        "| `data.label_separator` | a single character | `'\\|'` | Between the labels of a multi-label CSV. |",
    ],
)
def test_a_row_says_what_is_allowed_and_what_is_the_default(row: str) -> None:
    assert row in reference().splitlines()
