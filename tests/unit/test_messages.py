"""docs/errors.md has a row for every message of the code, and none for one that is gone."""

import re
from pathlib import Path

from tests.messages import messages, plain

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"


def rows() -> list[list[str]]:
    """Cells of the tables' rows: message, what it means, what to do."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def documented() -> set[str]:
    return {plain(cells[0].strip("`")) for cells in rows()}


def test_the_code_has_messages_and_they_are_found() -> None:
    found = messages()
    assert len(found) > 150
    for words in (
        "scaling.workers: … workers of … each, but … can hold …",
        "…: no such setting (…), …",
        "training.epochs",
        "the bucket does not exist; create it, or correct storage.path",
        "training failed on rank …: …",
    ):
        assert (words in found) is (words != "training.epochs")


def test_every_message_has_its_row() -> None:
    known = documented()
    missing = [text for text in messages() if plain(text) not in known]
    lines = "\n".join(f"| `{text.replace('|', chr(92) + '|')}` | means | do |" for text in missing)
    assert missing == [], f"docs/errors.md needs these rows, filled in:\n{lines}"


def test_every_row_belongs_to_a_message_and_says_what_to_do() -> None:
    known = {plain(text) for text in messages()}
    assert [cells[0] for cells in rows() if plain(cells[0].strip("`")) not in known] == []
    assert [cells[0] for cells in rows() if len(cells) != 3 or not all(cells)] == []
    assert len(rows()) == len(documented())
