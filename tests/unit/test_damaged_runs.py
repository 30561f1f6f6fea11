"""A file of a run that is not as it was written is named, hides no other run, and is never written over."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import records
from pipeline.config import Config, Storage
from pipeline.data.inspect import inspect
from pipeline.errors import PipelineError, UserError
from pipeline.preflight import _existing
from pipeline.run import RunFolder
from pipeline.runs import describe, export, summaries
from pipeline.settings import load
from pipeline.storage import Store, open_store
from tests.unit import stored
from tests.unit.test_commands import run_cli

OWNER = json.dumps(stored.OWNER)


def store_at(folder: Path) -> Store:
    return open_store(Storage(path=str(folder)))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"status": "finished"}', "\ufeff{}"])
def test_a_damaged_result_is_named(tmp_path: Path, content: str) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "owner.json").write_text(OWNER)
    (tmp_path / "bad" / "result.json").write_text(content)
    store = store_at(tmp_path)
    assert {row["run"]: row["status"] for row in summaries(store)} == {"good": "unfinished", "bad": "damaged"}
    for read in (lambda: describe(store.child("bad")), RunFolder(store.child("bad")).result):
        with pytest.raises(UserError, match=r"bad/result\.json: is damaged: "):
            read()


def problems_of(config: Config) -> list[str]:
    """What the check of an existing run finds wrong."""
    try:
        _existing(config, inspect(config))
    except UserError as error:
        return error.problems
    return []


SHAPES: list[tuple[str, Any, str]] = [
    ("history", None, "history: found null"),
    ("history", [1], "history.0: found 1"),
    ("history", [{"epoch": 1}], "has no 'history.0.step'"),
    ("history", [{"epoch": 1, "step": 4, "eval_f1": "high"}], "history.0.eval_f1: found 'high'"),
    ("best_checkpoint", None, "best_checkpoint: found null"),
    ("epochs", "two", "epochs: found 'two'"),
    ("epochs", 0, "epochs: found 0"),
    ("steps", True, "steps: found true"),
    ("metrics", "good", "metrics: found 'good'"),
    ("world_size", ..., "has no 'world_size'"),
]


@pytest.mark.parametrize(("field", "value", "words"), SHAPES)
def test_a_result_of_another_shape_is_a_row_of_the_list_and_one_line_everywhere_else(
    tmp_path: Path,
    files: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    field: str,
    value: Any,
    words: str,
) -> None:
    runs = tmp_path / "runs"
    stored.finished(runs / "good")
    bad = stored.finished(runs / "banking77")
    wrong = {key: item for key, item in {**stored.RESULT, field: value}.items() if item is not ...}
    (bad / "result.json").write_text(json.dumps(wrong))
    status, out, _ = run_cli(["runs", "list", str(runs), "--json"], capsys)
    assert {row["run"]: row["status"] for row in json.loads(out)} == {"good": "finished", "banking77": "damaged"}
    assert status == 0
    problems = problems_of(load(None, files(), {}))
    for command in (["show", str(bad)], ["export", str(bad), str(tmp_path / "model")]):
        status, out, err = run_cli(["runs", *command], capsys)
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        problems.append(line)
    assert len(problems) == 3
    for problem in problems:
        assert f"banking77/result.json: is damaged: {words}" in problem
        assert "restore it, or take another run.name" in problem
        assert "pydantic" not in problem
    assert not (tmp_path / "model").exists()


def damage_owner(run: Path, how: str) -> None:
    (run / "owner.json").unlink()
    if how == "folder":
        (run / "owner.json").mkdir()
    elif how == "link":
        (run / "owner.json").symlink_to(run / "nothing")
    elif how != "gone":
        (run / "owner.json").write_text(how)


@pytest.mark.parametrize("how", ["folder", "link", "gone", '{"owner": "x", "started": null}', '{"started": 1}', "[]"])
def test_a_damaged_mark_of_the_owner_does_not_end_the_list(tmp_path: Path, how: str) -> None:
    stored.finished(tmp_path / "good")
    damage_owner(stored.finished(tmp_path / "bad"), how)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "no-run").mkdir()
    assert {row["run"]: row["status"] for row in summaries(store_at(tmp_path))} == {
        "good": "finished",
        "bad": "damaged",
    }


@pytest.mark.parametrize(("config", "data"), [("a: [", "{}"), ("- a", "{}"), ("run: {}", "{}"), ("", "{}")])
def test_damaged_notes_of_the_start_are_named(tmp_path: Path, config: str, data: str) -> None:
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "data.json").write_text(data)
    with pytest.raises(UserError, match=r"config\.yaml: is damaged: "):
        RunFolder(store_at(tmp_path)).started_with()


@pytest.fixture
def begun(files: Callable[..., list[str]], tmp_path: Path) -> Callable[[], Config]:
    """A run of the default name that has made its first attempt; gives the configuration that goes on with it."""
    config = load(None, files(), {})
    folder = RunFolder.of(config)
    folder.take_over(config, inspect(config))
    folder.claim_attempt(1)
    return lambda: config


@pytest.mark.parametrize("missing", [["config.yaml"], ["data.json"], ["config.yaml", "data.json"]])
@pytest.mark.parametrize("left", ["attempts", "result.json", "checkpoints"])
def test_a_run_that_has_begun_and_lost_its_notes_is_not_taken_for_a_new_one(
    begun: Callable[[], Config], tmp_path: Path, missing: list[str], left: str
) -> None:
    config, run = begun(), tmp_path / "runs" / "banking77"
    assert problems_of(config) == []
    if left != "attempts":
        shutil.rmtree(run / "attempts")
        (run / "result.json").write_text("{}") if left == "result.json" else (run / stored.NAME).mkdir()
    for name in missing:
        (run / name).unlink()
    (problem,) = problems_of(config)
    assert f"{run}: is damaged: has {left}, but no {' and no '.join(missing)}; restore" in problem
    assert "take another run.name" in problem


def test_a_start_that_ended_between_its_first_writes_is_begun_again(
    begun: Callable[[], Config], tmp_path: Path
) -> None:
    config, run = begun(), tmp_path / "runs" / "banking77"
    shutil.rmtree(run / "attempts")
    (run / "data.json").unlink()
    assert problems_of(config) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("training:\n", "training: 3\nother:\n", "training: found 3, expected a mapping"),
        ("checkpoint:\n", "checkpoint:\nother:\n", "checkpoint: found null, expected a mapping"),
        ("  epochs: 2", "  epochs: two", "training.epochs: found 'two'"),
        ("  epochs: 2", "  epochs: 2\n  speed: 3", "training.speed: no such setting"),
        ("  epochs: 2", "  epochs: 0\n  speed: 3", "(and 1 more)"),
    ],
)
def test_a_stored_configuration_that_cannot_be_read_is_one_line_with_its_address(
    begun: Callable[[], Config], tmp_path: Path, old: str, new: str, words: str
) -> None:
    config, file = begun(), tmp_path / "runs" / "banking77" / "config.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    (problem,) = problems_of(config)
    assert problem.startswith(f"{file}: is damaged")
    assert words in problem
    assert "restore it, or take another run.name" in problem
    assert "pydantic" not in problem
    assert "\n" not in problem


def test_a_run_of_a_version_that_lacked_a_setting_is_compared_with_the_default(
    begun: Callable[[], Config], tmp_path: Path
) -> None:
    config, file = begun(), tmp_path / "runs" / "banking77" / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("  warmup_ratio:", "  packing:"))]
    assert len(kept) == len(lines) - 2
    text = "".join(kept)
    start, end = text.index("metrics:\n"), text.index("checkpoint:\n")
    file.write_text(text[:start] + text[end:])
    assert problems_of(config) == []
    other = config.model_copy(update={"training": config.training.model_copy(update={"warmup_ratio": 0.5})})
    assert "training.warmup_ratio: the run has 0.1, the configuration 0.5" in problems_of(other)[0]


@pytest.mark.parametrize("stray", [".DS_Store", "001.json~", "notes.json", "002.json.swp"])
def test_what_else_lies_in_the_folder_of_attempts_is_none(
    begun: Callable[[], Config], tmp_path: Path, stray: str
) -> None:
    folder = RunFolder.of(begun())
    (tmp_path / "runs" / "banking77" / "attempts" / stray).write_text("\0")
    assert folder.attempts() == 1
    (row,) = summaries(store_at(tmp_path / "runs"))
    assert (row["status"], row["attempts"]) == ("unfinished", 1)
    assert [entry["attempt"] for entry in describe(folder.store)["attempts"]] == [1]


@pytest.mark.parametrize("left", ["checkpoint-00000004-a007", "metrics/attempt-007-0002.jsonl"])
def test_an_attempt_whose_own_file_was_lost_is_counted_by_what_it_left(
    begun: Callable[[], Config], tmp_path: Path, left: str
) -> None:
    folder, run = RunFolder.of(begun()), tmp_path / "runs" / "banking77"
    shutil.rmtree(run / "attempts")
    (run / left).parent.mkdir(exist_ok=True)
    (run / left).write_text('{"step": 1}\n') if left.endswith(".jsonl") else (run / left).mkdir()
    folder = RunFolder(folder.store, records.owner(folder.store)["owner"])  # type: ignore[index]
    assert (folder.attempts(), folder.claim_attempt(1)) == (7, 8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b'{"step": 1}\n{"step": 2, "lo', "line 2: "),
        (b"[]\n", "line 1: has no step"),
        (b'{"step": "1"}\n', "line 1: has no step"),
        (b"\xff\n", "line 1: "),
    ],
)
def test_a_damaged_part_of_the_metrics_is_named_before_a_run_goes_on(
    begun: Callable[[], Config], tmp_path: Path, content: bytes, words: str
) -> None:
    config, run = begun(), tmp_path / "runs" / "banking77"
    (run / "metrics").mkdir()
    (run / "metrics" / "attempt-001.jsonl").write_bytes(content)
    (problem,) = problems_of(config)
    assert problem.startswith(f"{run}/metrics/attempt-001.jsonl: is damaged: {words}")
    assert problem.endswith("; restore it, or take another run.name")


def test_a_finished_run_that_was_made_longer_and_lost_is_not_finished(tmp_path: Path) -> None:
    run = stored.finished(tmp_path / "run")
    (run / "attempts" / "002.json").write_text('{"attempt": 2}')
    (row,) = summaries(store_at(tmp_path))
    assert row == {"run": "run", "status": "unfinished", "started": stored.OWNER["started"], "attempts": 2}
    found = describe(store_at(run))
    assert (found["status"], found["result"]) == ("unfinished", None)
    # The best one of the result may be gone by now; that of the newest state is not.
    newest = run / "checkpoint-00000004-a002"
    (run / stored.NAME).rename(newest)
    assert export(store_at(run), tmp_path / "model", "best") == newest.name


WITHOUT_HASHES = {name: {"size": len(content)} for name, content in stored.FILES.items()}
WITHOUT_WEIGHTS = {name: stored.entry(text) for name, text in stored.FILES.items() if name != "model.safetensors"}


@pytest.mark.parametrize("files", [WITHOUT_HASHES, {}, None, [], {"config.json": 3}, WITHOUT_WEIGHTS])
def test_a_checkpoint_whose_manifest_was_changed_is_not_exported(tmp_path: Path, files: Any) -> None:
    run = stored.finished(tmp_path / "run")
    stored.manifest(run, files)
    with pytest.raises(PipelineError) as caught:
        export(store_at(run), tmp_path / "model", "best")
    assert len(caught.value.problems) == 1
    assert "no complete checkpoint" in str(caught.value) or "has no weights" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"best_step": "x"}'])
def test_a_damaged_state_is_named_where_the_best_is_looked_for_in_it(tmp_path: Path, state: str) -> None:
    run = stored.finished(tmp_path / "run")
    (run / "result.json").unlink()
    (run / stored.NAME / "state.json").write_text(state)
    stored.manifest(run, {name: stored.entry(text) for name, text in {**stored.FILES, "state.json": state}.items()})
    with pytest.raises(UserError, match=rf"{stored.NAME}/state\.json: is damaged"):
        export(store_at(run), tmp_path / "model", "best")


def test_an_unchanged_run_is_shown_and_exported(tmp_path: Path) -> None:
    run = stored.finished(tmp_path / "run")
    assert export(store_at(run), tmp_path / "model", "best") == stored.NAME
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    assert describe(store_at(run))["checkpoints"] == [stored.NAME]
