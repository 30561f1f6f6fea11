"""Lines of metrics reach storage whole, though two threads bring them there."""

import threading
from pathlib import Path

import pytest

from pipeline import tracking
from pipeline.errors import StorageError
from pipeline.local_store import LocalStore
from pipeline.tracking import Recorder, merged


class Slow(LocalStore):
    """Its first write waits for `go`, and fails then if it is told to."""

    def __init__(self, root: Path, fails: bool = False) -> None:
        super().__init__(root)
        self.under_way, self.go, self.fails = threading.Event(), threading.Event(), fails

    def write(self, name: str, data: bytes, *, if_absent: bool = False, if_tag: str | None = None) -> str:
        if not self.under_way.is_set():
            self.under_way.set()
            assert self.go.wait(20)
            if self.fails:
                raise StorageError("storage: away")
        return super().write(name, data, if_absent=if_absent, if_tag=if_tag)


def flush(recorder: Recorder) -> None:
    try:
        recorder.flush()
    except StorageError:
        return


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("part_bytes", [tracking.PART_BYTES, 10])
def test_a_flush_ends_with_all_lines_in_storage_though_an_older_write_is_still_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool, part_bytes: int
) -> None:
    monkeypatch.setattr(tracking, "PART_BYTES", part_bytes)
    store = Slow(tmp_path, fails)
    recorder = Recorder(store, 1)
    recorder.add({"step": 1, "learning_rate": 0.5})
    older = threading.Thread(target=flush, args=(recorder,))
    older.start()
    assert store.under_way.wait(20)
    recorder.add({"step": 2, "learning_rate": 0.5})
    newer = threading.Thread(target=flush, args=(recorder,))
    newer.start()
    newer.join(0.5)
    assert newer.is_alive() or [line["step"] for line in merged(store, 9)] == [1, 2]
    store.go.set()
    newer.join(20)
    assert [line["step"] for line in merged(store, 9)] == [1, 2]
    older.join(20)
    assert [line["step"] for line in merged(store, 9)] == [1, 2]
