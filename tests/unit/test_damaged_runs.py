"""A file of a run that is not as it was written is named, and hides no other run."""

from pathlib import Path

import pytest

from pipeline.config import Storage
from pipeline.errors import UserError
from pipeline.run import RunFolder
from pipeline.runs import describe, summaries
from pipeline.storage import open_store

OWNER = '{"owner": "x", "started": "2026-01-01"}'


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"status": "finished"}', "\ufeff{}"])
def test_a_damaged_result_is_named(tmp_path: Path, content: str) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "owner.json").write_text(OWNER)
    (tmp_path / "bad" / "result.json").write_text(content)
    store = open_store(Storage(path=str(tmp_path)))
    assert {row["run"]: row["status"] for row in summaries(store)} == {"good": "unfinished", "bad": "damaged"}
    for read in (lambda: describe(store.child("bad")), RunFolder(store.child("bad")).result):
        with pytest.raises(UserError, match=r"bad/result\.json: is damaged: "):
            read()


@pytest.mark.parametrize(("config", "data"), [("a: [", "{}"), ("- a", "{}"), ("run: {}", "{}"), ("", "{}")])
def test_damaged_notes_of_the_start_are_named(tmp_path: Path, config: str, data: str) -> None:
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "data.json").write_text(data)
    with pytest.raises(UserError, match=r"config\.yaml: is damaged: "):
        RunFolder(open_store(Storage(path=str(tmp_path)))).started_with()
