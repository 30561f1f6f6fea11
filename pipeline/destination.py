"""DIR of `pipeline runs export` and `copy`: a new or empty folder, which is filled as a whole or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.errors import RunError, UserError

PARTIAL = ".partial-"
# Of a disk, not of a mistake in the program.
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Of a rename, which replaces nothing but an empty folder.
FILLED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


@contextmanager
def filled(folder: Path) -> Iterator[Path]:
    """An empty folder for the block to fill. What is in it afterwards is in `folder`; if the block fails, nothing is.

    It is made at once, so that a place that cannot be written is known before anything is downloaded. A folder that is
    there already stays the same one, so that it can be the current one, a mount or the end of a link.

    Raises:
        UserError: `folder` is not empty, or cannot be made or written.
        RunError: there is no room.
    """
    shown = str(folder)
    made: list[Path] = []
    if "\0" in shown:
        raise UserError(f"DIR: {shown!r} has a character in it that no file can have")
    folder = folder.absolute()
    try:
        is_there = _is_there(folder)
        for parent in [path for path in reversed(folder.parents) if not path.exists()]:
            parent.mkdir()
            made.append(parent)
        folder.exists()  # of a name that is too long this is found only now that the folder around it is there
        scratch = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder if is_there else folder.parent))
    except OSError as error:
        _remove(made)
        raise UserError(f"DIR: {shown[:200]} cannot be written: {error.strerror or error}") from error
    try:
        partial = scratch / "whole"  # with the rights of a new folder; those of `scratch` are for its user alone
        partial.mkdir()
        yield partial
        _as_new_files(partial)
        if is_there:
            _move_into(partial, folder, scratch)
        else:
            _rename(partial, folder)
        made.clear()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise RunError(f"DIR: {shown} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _remove(made)


def _is_there(folder: Path) -> bool:
    """Whether an empty folder is there to be filled. Raises UserError if something else is."""
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UserError(f"DIR: {folder} exists and is not an empty folder")
        return True
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise UserError(f"DIR: {path} is a link to nothing")
        if path.exists() and not path.is_dir():
            raise UserError(f"DIR: {path} is a file, not a folder")
    return False


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError as error:
        if error.errno in FILLED:
            raise UserError(f"DIR: {folder} is no longer empty; another command writes there") from error
        raise


def _move_into(partial: Path, folder: Path, scratch: Path) -> None:
    if [path for path in folder.iterdir() if path != scratch]:
        raise UserError(f"DIR: {folder} is no longer empty; another command writes there")
    moved = []
    try:
        for path in partial.iterdir():
            path.rename(folder / path.name)
            moved.append(path.name)
    except BaseException:
        for name in moved:
            (folder / name).rename(partial / name)
        raise


def _remove(made: list[Path]) -> None:
    for path in reversed(made):
        with suppress(OSError):  # somebody else has put something there
            path.rmdir()


def _as_new_files(folder: Path) -> None:
    """Readable by whom the user's own new files are: weights come out of a temporary file, for the user alone."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.rglob("*"):
        file.chmod((0o777 if file.is_dir() else 0o666) & ~mask)
