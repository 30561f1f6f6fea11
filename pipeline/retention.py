"""Which checkpoints stay: the latest `keep`, and the best."""

import logging

from pipeline.checkpoint import MANIFEST, Name, complete
from pipeline.errors import StorageError
from pipeline.storage import Store

LOGGER = logging.getLogger("pipeline")


def chosen(found: list[Name], keep: int, best_step: int | None) -> set[Name]:
    """Those to keep of complete checkpoints, oldest first. Of the best step the newest attempt's is kept."""
    best = [name for name in found if name.step == best_step][-1:]
    return {*found[-keep:], *best}


def prune(run: Store, attempt: int, keep: int, best_step: int | None) -> None:
    """Delete what is not to be kept, and what dead attempts left unfinished.

    Nothing of an attempt newer than `attempt` is touched. A store that does not let us delete costs a warning only.
    """
    found = complete(run)
    kept = chosen(found, keep, best_step)
    for folder in run.folders():
        name = Name.parse(folder)
        if name is None or name.attempt > attempt or name in kept:
            continue
        if name not in found and name.attempt == attempt:
            continue  # its upload may be under way
        try:
            # The manifest first: from then on the rest is invisible, should the deletion be cut short.
            run.delete(f"{name}/{MANIFEST}")
            run.delete(str(name))
        except StorageError as error:
            LOGGER.warning("%s could not be deleted and stays: %s", name, error)
            return
