"""Progress as a person sees it: a live bar in a terminal, plain lines in a log."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0
POLL_EVERY_S = 0.5


class LatestValues:
    """Newest progress values, between rank 0 and the driver, and what ranks say that stand still.

    An actor, here because this module imports little.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._standing: dict[int, str] = {}
        self._failed: str | None = None

    def post(self, values: dict[str, Any]) -> None:
        """Newer values of some keys."""
        self._values |= values

    def read(self) -> dict[str, Any]:
        """All keys."""
        return self._values

    def begins(self, rank: int) -> None:
        """A rank starts, or goes on after all."""
        self._standing.pop(rank, None)
        self._failed = None

    def stands(self, rank: int, words: str) -> None:
        """A rank has been doing this for long."""
        self._standing[rank] = words

    def standing(self) -> dict[int, str]:
        """Words of each rank that stands still."""
        return self._standing

    def failed(self, words: str) -> None:
        """Last words of a rank that ends itself."""
        self._failed = words
        self._values["event"] = words

    def last_words(self) -> str | None:
        """Of the rank that ended itself last, if none has started since."""
        return self._failed


def _time_left(values: dict[str, Any], seconds: float, first: int) -> str:
    done = values["step"] - first
    if done <= 0:
        return "?"
    left = int(seconds / done * (values["total"] - values["step"]))
    return f"{left // 60}:{left % 60:02d}"


def words(values: dict[str, Any]) -> str:
    """Loss, rate and speed in a line."""
    parts = []
    if values.get("loss") is not None:
        parts.append(f"loss {values['loss']:.4f}")
    if values.get("learning_rate") is not None:
        parts.append(f"lr {values['learning_rate']:.2e}")
    if values.get("samples_per_second") is not None:
        parts.append(f"{values['samples_per_second']:.0f} rows/s")
    if values.get("note"):
        parts.append(str(values["note"]))
    return "  ".join(parts)


class Display:
    """Shows what `read` gives, until the block is left."""

    def __init__(self, read: Callable[[], dict[str, Any]], console: Console | None = None) -> None:
        self._read = read
        self._console = console or Console(file=sys.stderr)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._bar if self._console.is_terminal else self._lines, daemon=True)

    def __enter__(self) -> "Display":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _bar(self) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
            TimeRemainingColumn(), TextColumn("{task.fields[words]}"),
        )  # fmt: skip
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task("starting", total=None, words="")
            shown = None
            while not self._stop.wait(POLL_EVERY_S):
                values = self._read()
                if values.get("event") != shown:
                    shown = values["event"]
                    bar.print(shown)
                if "step" in values:
                    name = f"epoch {values['epoch']:.2f}"
                    bar.update(
                        task, description=name, completed=values["step"], total=values["total"], words=words(values)
                    )

    def _lines(self) -> None:
        began, first, last, shown = 0.0, None, 0.0, None
        while not self._stop.wait(POLL_EVERY_S):
            values = self._read()
            if values.get("event") != shown:
                shown = values["event"]
                self._print(shown)
            if "step" not in values or time.monotonic() - last < LINE_EVERY_S:
                continue
            last = time.monotonic()
            if first is None or values["step"] < first:
                began, first = last, values["step"]
            left = _time_left(values, last - began, first)
            self._print(
                f"step {values['step']}/{values['total']}  epoch {values['epoch']:.2f}  {words(values)}  left {left}"
            )

    def _print(self, line: str) -> None:
        print(line, file=self._console.file, flush=True)
