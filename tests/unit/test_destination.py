"""DIR of `runs export` and `copy`: looked at first, filled as a whole, and nothing is left of what failed."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pipeline import checkpoint, runs
from pipeline.config import Storage
from pipeline.destination import filled
from pipeline.errors import RunError, StorageError, UserError
from pipeline.storage import open_store
from tests.unit import stored
from tests.unit.test_commands import run_cli


def fill(folder: Path) -> None:
    with filled(folder) as partial:
        (partial / "in").mkdir()
        (partial / "in" / "a").write_text("a")
        (partial / "b").write_text("b")


def below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_new_folder_an_empty_one_the_current_one_and_the_end_of_a_link_are_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("empty", "here", "end"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "end")
    monkeypatch.chdir(tmp_path / "here")
    places = {"new": tmp_path / "deep" / "new", "empty": tmp_path / "empty", "here": Path(), "end": tmp_path / "link"}
    for place in places.values():
        fill(place)
        assert below(place) == ["b", "in", "in/a"]
    assert (tmp_path / "link").is_symlink()
    assert below(tmp_path / "end") == ["b", "in", "in/a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "empty", "end", "here", "link"]
    mask = os.umask(0)
    os.umask(mask)
    for path in (tmp_path / "deep" / "new", tmp_path / "deep" / "new" / "in"):
        assert path.stat().st_mode & 0o777 == 0o777 & ~mask
    assert (tmp_path / "empty" / "b").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("full", "exists and is not an empty folder"),
        ("file", "is a file"),
        ("file/below/it", "is a file"),
        ("dead", "is a link to nothing"),
        ("dead/below", "is a link to nothing"),
        ("a\0b", "no file can have"),
        ("", "is empty"),
        ("a/" + "x" * 300, "File name too long"),
        ("x" * 300 + "/a", "File name too long"),
        ("/proc/no/place", "cannot be written"),
        ("/sys/no", "cannot be written"),
    ],
)
def test_a_place_that_cannot_be_filled_is_told_before_the_run_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str, words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    (tmp_path / "file").write_text("a")
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    before = below(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in ("export", "copy"):
        status, out, err = run_cli(["runs", command, "s3://bucket/that-is-not-asked", place], capsys)
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("error: DIR: ")
        assert words in line
    assert below(tmp_path) == before


def fail(folder: Path, error: Exception) -> None:
    with filled(folder) as partial:
        (partial / "a").write_text("a")
        raise error


@pytest.mark.parametrize("place", ["deep/new", "empty"])
def test_what_fails_leaves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=rf"DIR: .*{place} cannot be written: No space left"):
        fail(tmp_path / place, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(UserError, match="no run"):
        fail(tmp_path / place, UserError("no run"))
    assert below(tmp_path) == ["empty"]


def test_a_folder_that_is_filled_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def overtaken() -> None:
        with filled(tmp_path) as partial:
            (partial / "a").write_text("ours")
            (tmp_path / "a").write_text("theirs")

    with pytest.raises(UserError, match="no longer empty"):
        overtaken()
    assert below(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "theirs"


def test_a_new_folder_that_somebody_else_makes_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def overtaken() -> None:
        with filled(tmp_path / "new") as partial:
            (partial / "a").write_text("ours")
            (tmp_path / "new").mkdir()
            (tmp_path / "new" / "a").write_text("theirs")

    with pytest.raises(UserError, match="no longer empty"):
        overtaken()
    assert below(tmp_path) == ["new", "new/a"]
    assert (tmp_path / "new" / "a").read_text() == "theirs"


def test_a_disk_that_is_full_is_told_as_such_and_not_as_a_store_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(Storage(path=str(stored.finished(tmp_path / "run"))))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipeline.local_store.shutil.copyfileobj", full)
    with pytest.raises(StorageError, match=r"cannot write .*/whole/[a-z.]+: No space left"):
        runs.export(store, tmp_path / "model", "best")
    # As the store in S3 raises it.
    monkeypatch.setattr(type(store), "download", full)
    with pytest.raises(StorageError, match=r"cannot write .*/whole/[a-z.]+: No space left"):
        runs.export(store, tmp_path / "model", "best")

    def cut(_: object, __: str, local: Path) -> None:
        local.write_text("w")

    # The last write that a disk takes is cut without an error; the checkpoint is not to blame.
    monkeypatch.setattr(type(store), "download", cut)
    with pytest.raises(StorageError, match=r"cannot write .*: 1 of \d+ bytes are there"):
        runs.export(store, tmp_path / "model", "best")
    monkeypatch.setattr(Path, "write_bytes", full)
    with (
        pytest.raises(StorageError, match=r"cannot write .*/whole/config.yaml: No space left"),
        filled(tmp_path / "copy") as partial,
    ):
        runs.copy(store, partial)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_export_that_is_ended_leaves_nothing_beside_dir(tmp_path: Path) -> None:
    run = stored.finished(tmp_path / "run")
    program = f"""
        import os, signal, sys
        from pipeline import checkpoint, cli
        checkpoint.digest = lambda path: os.kill(os.getpid(), signal.SIGTERM)
        cli.main(["runs", "export", {str(run)!r}, {str(tmp_path / "deep" / "model")!r}])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_run_is_copied_whole_with_its_checkpoints_or_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored.finished(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    small = [name for name in below(run) if (run / name).is_file() and not name.startswith("checkpoint-")]
    assert "logs/a001-r0.log" in small
    status, out, _ = run_cli(["runs", "copy", "run", "small"], capsys)
    assert (status, out) == (0, f"{len(small)} files of {run} are in small\n")
    assert [name for name in below(tmp_path / "small") if (tmp_path / "small" / name).is_file()] == small
    assert run_cli(["runs", "copy", "run", "all", "--checkpoints"], capsys)[0] == 0
    assert below(tmp_path / "all") == below(run)
    for name in small:
        assert (tmp_path / "all" / name).read_bytes() == (run / name).read_bytes()
    # One that goes on, or was lost, has less to copy.
    (run / "result.json").unlink()
    (run / "metrics.jsonl").unlink()
    assert run_cli(["runs", "copy", "run", "lost"], capsys)[0] == 0
    assert "metrics/attempt-001.jsonl" in below(tmp_path / "lost")
    # All or nothing: a damaged checkpoint ends the copy.
    (run / stored.NAME / "model.safetensors").write_text("changed")
    status, _, err = run_cli(["runs", "copy", "run", "none", "--checkpoints"], capsys)
    assert (status, "sha256" in err) == (1, True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [["export"], ["export", "--checkpoint=last"], ["copy", "--checkpoints"]])
def test_a_checkpoint_that_the_run_deletes_while_it_is_read_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    run = stored.finished(tmp_path / "run")
    monkeypatch.setattr(checkpoint, "complete", lambda _: [checkpoint.Name(1, 4)])
    shutil.rmtree(run / stored.NAME)
    status, out, err = run_cli(["runs", command[0], str(run), str(tmp_path / "new"), *command[1:]], capsys)
    (line,) = err.splitlines()
    assert (status, out) == (1, "")
    assert line.startswith(f"error: RUN: {run / stored.NAME}/")
    assert line.endswith("was deleted while it was read, as the run goes on; start the command again")
    assert not (tmp_path / "new").exists()


def test_a_name_in_a_store_cannot_lead_out_of_dir(tmp_path: Path) -> None:
    assert runs._is_plain("logs/a001-r0.log")
    assert not runs._is_plain("logs/../../escaped")
