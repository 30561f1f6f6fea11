"""A worker that stands still ends itself and says where, so that Ray Train starts the workers again.

What can stand still, and what notices it:

| Stands still | Noticed by | After |
|---|---|---|
| a data loader, Python code, a collective: no new activity | the thread here | `run.stall_timeout_s` |
| C code that keeps all Python threads from running | `faulthandler`, whose timer needs none | a quarter more |
| a collective alone, the others being busy | torch's process group (`run.collective_timeout_s`) | its time-out |
| the whole process, frozen or its node gone | the others' collectives; last, Ray Train's health check | a minute more |

Time in which the process was stopped as a whole (SIGSTOP, a paused container) does not count here.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from pipeline import activity
from pipeline.errors import PipelineError, WorkerFailed

LOGGER = logging.getLogger("pipeline")
EXIT_STATUS = 70
# Idle for so long, a rank tells the board what it is doing, for the message of whoever gives up first.
TELL_AFTER_S = 5.0
# The last words may not take longer than this: the store may be what stands still.
FLUSH_S = 15.0
STDERR = 2


class Standings(Protocol):
    """Where the ranks say what they are doing when they have been at it for long."""

    def begins(self, rank: int) -> None:
        """A rank starts, or goes on after all; must not block."""

    def stands(self, rank: int, words: str) -> None:
        """What a rank is doing; must not block."""

    def failed(self, words: str) -> None:
        """Last words of a rank; waits for their arrival, at most a few seconds."""

    def standing(self) -> dict[int, str]:
        """What the ranks have said, by rank; empty if that cannot be found out within a few seconds."""


class Watchdog:
    """Watches this process during the block; `limit_s` is in seconds, and `flush` brings the log to safety."""

    def __init__(
        self,
        rank: int,
        limit_s: float,
        board: Standings,
        flush: Callable[[], object],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._rank, self._limit_s, self._board, self._flush, self._end = rank, limit_s, board, flush, end
        self._poll_s = min(1.0, limit_s / 10)
        self._watched = threading.main_thread().ident
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        # Ray Train runs the training in a thread of its own.
        self._watched = threading.get_ident()
        activity.mark("starting")
        self._board.begins(self._rank)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch. An error of no type of ours is raised again as WorkerFailed, with rank, step and activity.

        So is `sys.exit()` in code of the user's: it would end as an error that is called `0`.
        """
        self._stop.set()
        self._thread.join(timeout=5)
        if error is not None and not isinstance(error, PipelineError):
            said = str(error).strip().splitlines()
            words = f"rank {self._rank} {activity.last().words()}: {type(error).__name__}: {said[0] if said else ''}"
            raise WorkerFailed(f"{words.rstrip(': ')}{self._others()}") from error

    def _watch(self) -> None:
        seen, idle_s, told = activity.last(), 0.0, False
        try:
            while True:
                # Armed anew at each look: it goes off only when this thread itself cannot run any more.
                faulthandler.dump_traceback_later(self._limit_s * 1.25 + seen.extra_s + 5, exit=True, file=STDERR)
                before = time.monotonic()
                if self._stop.wait(self._poll_s):
                    return
                # Of a long time between two looks, in which the process was stopped or starved, little counts.
                idle_s += min(time.monotonic() - before, 2 * self._poll_s)
                now = activity.last()
                if now is not seen:
                    if told:
                        self._board.begins(self._rank)
                    seen, idle_s, told = now, 0.0, False
                elif idle_s >= self._limit_s + seen.extra_s:
                    self._give_up(seen, idle_s)
                    return
                elif not told and idle_s >= min(TELL_AFTER_S, self._limit_s / 2):
                    told = True
                    self._board.stands(self._rank, seen.words())
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _give_up(self, seen: activity.Activity, idle_s: float) -> None:
        words = (
            f"rank {self._rank} has stood still for {idle_s:.0f} s {seen.words()}; it is ended after "
            f"run.stall_timeout_s={self._limit_s:g}"
        )
        frame = sys._current_frames().get(self._watched or 0)
        where = "".join(traceback.format_stack(frame)[-12:]) if frame else "its thread is gone\n"
        faulthandler.dump_traceback_later(FLUSH_S * 2, exit=True, file=STDERR)
        last = threading.Thread(target=self._last_words, args=(words, where), daemon=True)
        last.start()
        last.join(FLUSH_S)
        self._end(EXIT_STATUS)

    def _last_words(self, words: str, where: str) -> None:
        message = words + self._others()
        LOGGER.error("%s\n%s", message, where)
        self._board.failed(message)
        self._flush()

    def _others(self) -> str:
        found = {rank: words for rank, words in self._board.standing().items() if rank != self._rank}
        return "".join(f"; rank {rank} {words}" for rank, words in sorted(found.items()))
