"""What the driver says when the workers are gone for good."""

import pytest

from pipeline.fit import _cause, _with_others
from pipeline.progress import LatestValues


class Failed(Exception):
    """As Ray Train's, with what each rank failed of."""

    def __init__(self, failures: dict[int, Exception]) -> None:
        super().__init__("Training failed due to worker errors")
        self.worker_failures = failures


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "Traceback (most recent call last):\npipeline.errors.WorkerFailed: rank 1 at step 3, saving: Timed out",
            "training failed on rank 1: rank 1 at step 3, saving: Timed out",
        ),
        ("Traceback:\nValueError: no such thing", "training failed on rank 1: ValueError: no such thing"),
        ("", "training failed on rank 1: RuntimeError"),
        (
            "OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory.\nSee the documentation",
            (
                "training failed on rank 1: its node ran out of memory and Ray ended it; give the node more, or take a "
                "smaller training.batch_size_per_worker or fewer workers on it"
            ),
        ),
    ],
)
def test_the_cause_is_the_last_line_of_the_first_rank_that_failed(said: str, expected: str) -> None:
    assert _cause(Failed({2: RuntimeError("later"), 1: RuntimeError(said)})) == expected


def test_each_other_rank_is_told_of_once() -> None:
    cause = "training failed on rank 1: rank 1 at step 3, saving: ValueError: x; rank 10 starting"
    standing = {0: "at step 3, saving", 1: "at step 3, saving", 10: "starting"}
    assert _with_others(cause, standing) == f"{cause}; rank 0 at step 3, saving"


def test_last_words_are_those_of_the_last_attempt() -> None:
    board = LatestValues()
    board.begins(0)
    board.begins(1)
    board.stands(0, "at step 3, forward and backward")
    board.stands(1, "at step 3, waiting for a batch")
    board.failed("rank 1 has stood still for 60 s")
    assert board.standing() == {0: "at step 3, forward and backward", 1: "at step 3, waiting for a batch"}
    assert board.last_words() == "rank 1 has stood still for 60 s"
    # Shown on the terminal as well, between the lines of progress.
    assert board.read()["event"] == "rank 1 has stood still for 60 s"
    # The next attempt begins anew: what it fails of is not what the last one failed of.
    board.begins(0)
    board.begins(1)
    assert (board.standing(), board.last_words()) == ({}, None)
