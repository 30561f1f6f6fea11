"""What this process is doing right now, as one line, so that whoever finds it standing still can say where.

    activity.mark("waiting for a batch", step=12)

A process trains one model at a time, so there is one place for it. A mark costs less than a microsecond.
"""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """`what` since `since` (of time.monotonic) in optimizer step `step`; it may take `extra_s` longer than others."""

    what: str
    step: int | None
    since: float
    extra_s: float = 0.0

    def words(self) -> str:
        """E.g. `at step 12, waiting for a batch`."""
        return f"at step {self.step}, {self.what}" if self.step is not None else self.what


_last = Activity("starting", None, time.monotonic())


def mark(what: str, step: int | None = None, extra_s: float = 0.0) -> None:
    """Say what begins now. Without `step` the last one stays."""
    global _last
    _last = Activity(what, _last.step if step is None else step, time.monotonic(), extra_s)


def last() -> Activity:
    """What was marked last."""
    return _last
