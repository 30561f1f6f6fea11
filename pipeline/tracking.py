"""What a worker leaves in storage while it trains: lines of metrics and its log.

Objects in S3 cannot be appended to, so each attempt writes parts of its own, and a part is written again as a whole
when it has grown. A store that is away for a while costs nothing but a warning: the next flush brings everything.
"""

import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pipeline import records
from pipeline.errors import StorageError
from pipeline.storage import Store

LOGGER = logging.getLogger("pipeline")
FLUSH_EVERY_S = 10.0
# A part that is rewritten every 10 seconds must not grow without limit.
PART_BYTES = 4 * 1024 * 1024
PART = re.compile(r"metrics/attempt-(\d+)(?:-\d+)?\.jsonl")


class Board(Protocol):
    """Where progress is shown."""

    def post(self, **values: Any) -> None:
        """Newest values; must not block."""


class Recorder:
    """Metrics lines of one attempt, on rank 0."""

    def __init__(self, run: Store, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self._part = 1
        self._lines: list[bytes] = []
        self._size = 0
        self._dirty = False
        self._lock = threading.Lock()
        # One write after the other: an older one that is tried again would else land on a newer one, and a checkpoint
        # would be complete while the lines of its steps are still on their way.
        self._writing = threading.Lock()

    def add(self, line: dict[str, Any]) -> None:
        """Keep a line; it is in storage after the next flush."""
        line = {"time": round(time.time(), 3), "attempt": self._attempt, **line}
        # JSON has no NaN: a value that is none is written as null.
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()
        }
        with self._lock:
            self._lines.append(json.dumps(clean).encode() + b"\n")
            self._size += len(self._lines[-1])
            self._dirty = True

    def flush(self) -> None:
        """Write what is new; when it returns, all lines of before are in storage, whichever thread wrote them.

        Raises:
            StorageError: the store failed for longer than it is tried.
        """
        with self._writing:
            with self._lock:
                if not self._dirty:
                    return
                data, name = b"".join(self._lines), self._name()
                count, self._dirty = len(self._lines), False
            try:
                self._run.write(name, data)
            except StorageError:
                self._dirty = True
                raise
            with self._lock:
                if len(data) >= PART_BYTES:
                    self._lines = self._lines[count:]
                    self._part += 1

    def _name(self) -> str:
        return f"metrics/attempt-{self._attempt:03d}{'' if self._part == 1 else f'-{self._part:04d}'}.jsonl"


def _parts(run: Store) -> list[tuple[int, str]]:
    """Attempts and names of what recorders wrote, in order."""
    return sorted((int(found[1]), entry.name) for entry in run.list("metrics") if (found := PART.fullmatch(entry.name)))


def attempts(run: Store) -> set[int]:
    """The attempts that left lines."""
    return {attempt for attempt, _ in _parts(run)}


def merged(run: Store, last_step: int) -> list[dict[str, Any]]:
    """The lines of all attempts up to `last_step`, in order of steps; of a repeated one the newest attempt's.

    Raises:
        UserError: a part is damaged.
    """
    kept: dict[tuple[int, bool], dict[str, Any]] = {}
    for _, name in _parts(run):
        for line in records.lines(run, name):
            if line["step"] <= last_step:
                kept[line["step"], "learning_rate" not in line] = line
    return [kept[key] for key in sorted(kept)]


class LogFile:
    """The log of this process on local disk, and its copy in storage."""

    def __init__(self, run: Store, name: str, folder: Path) -> None:
        self._run, self._name, self._path = run, f"logs/{name}.log", folder / f"{name}.log"
        self._sent = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = logging.FileHandler(self._path, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def open(self) -> None:
        """Take in what this process logs from now on: our own lines, and warnings of the libraries."""
        # Ray opens the root logger for all that libraries tell their developers.
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("ray").setLevel(logging.WARNING)
        LOGGER.setLevel(logging.INFO)
        logging.getLogger().addHandler(self._handler)

    def flush(self) -> None:
        """Copy to storage what has grown."""
        self._handler.flush()
        size = self._path.stat().st_size
        if size != self._sent:
            self._run.upload(self._path, self._name)
            self._sent = size

    def close(self) -> None:
        """Copy the rest and let go of the file."""
        logging.getLogger().removeHandler(self._handler)
        try:
            self.flush()
        except StorageError as error:
            LOGGER.warning("the log %s could not be stored: %s", self._name, error)
        self._handler.close()


class Flusher:
    """A thread that calls `flush` every 10 seconds; what fails is said once and tried again the next time."""

    def __init__(self, *flushes: Callable[[], None]) -> None:
        self._flushes = flushes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="flusher", daemon=True)

    def __enter__(self) -> "Flusher":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    def _loop(self) -> None:
        while not self._stop.wait(FLUSH_EVERY_S):
            for flush in self._flushes:
                try:
                    flush()
                except StorageError as error:
                    LOGGER.warning("flushing to storage failed, will be tried again: %s", error)


def write_lines(run: Store, name: str, lines: list[dict[str, Any]]) -> None:
    """Write lines of JSON as one object."""
    run.write(name, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
