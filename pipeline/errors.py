"""The errors a user can meet, as a tree; the command line turns each into one line and an exit status.

PipelineError
├── UserError    exit 2: the input is wrong, said before any worker or GPU is asked for
├── WorkerFailed exit 1: a worker was lost, stood still or lost the others; tried again `run.max_failures` times
└── RunError     exit 1: anything else that failed after that, which trying again would not mend
    ├── StorageError  the store did not answer, or refused, after all retries
    └── Superseded    a newer attempt has taken this run over, so this one stops writing
"""

import re

# All control characters but tab and line end, and halves of characters, which cannot be printed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class PipelineError(Exception):
    """Base of all expected errors. `problems` holds one line for each thing that is wrong."""

    exit_status = 1

    def __init__(self, *problems: str) -> None:
        # A key or the name of a file may hold what a terminal obeys.
        self.problems = [CONTROL.sub(lambda found: ascii(found[0])[1:-1], problem) for problem in problems]
        super().__init__("; ".join(self.problems))

    def __reduce__(self) -> tuple[type["PipelineError"], tuple[str, ...]]:
        # Exceptions cross process borders in Ray; the default would lose all problems but a joined one.
        return type(self), tuple(self.problems)


class UserError(PipelineError):
    """The user's input is wrong: field or file, the value found, and what would be right."""

    exit_status = 2


class WorkerFailed(PipelineError):
    """A worker failed in a way that a new start of all workers may mend; says rank, step and last activity."""


class RunError(PipelineError):
    """A run failed after it had started."""


class StorageError(RunError):
    """The store did not do what it was asked, after all retries."""


class Superseded(RunError):
    """A newer attempt of the same run has taken over."""
