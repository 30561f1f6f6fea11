"""A world of processes that stays up for a test session and runs one case after the other in all of them."""

import importlib
import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

DEADLINE_S = 120.0
# Until the processes have imported torch; minutes where the machine is busy with other work.
START_S = 300.0


def _member(rank: int, size: int, port: int, scratch: str, pipe: Connection) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "TMPDIR": scratch,
    }  # fmt: skip
    import torch
    from accelerate.state import AcceleratorState

    torch.set_num_threads(1)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        module, name, arguments = order
        AcceleratorState._reset_state(reset_partial_state=True)
        try:
            pipe.send((None, getattr(importlib.import_module(module), name)(**arguments)))
        except Exception:  # noqa: BLE001  (whatever it was is told to the test)
            pipe.send((traceback.format_exc(), None))


class World:
    """`size` processes in one gloo group (a single one is no group at all), with temporary files in `scratch`."""

    def __init__(self, size: int, scratch: str) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._pipes, self._processes = [], []
        self.broken = self.started = False
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_member, args=(rank, size, port, scratch, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, case: Callable[..., Any], **arguments: Any) -> list[Any]:
        """What `case` returns on each rank.

        A rank that does not answer within the deadline is an error, not a hang; so is the first one that fails, as the
        others may wait for it. After either the world is `broken`: its processes are ended.
        """
        self._wait_for_start()
        for pipe in self._pipes:
            pipe.send((case.__module__, case.__name__, arguments))
        results: dict[int, Any] = {}
        deadline = time.monotonic() + DEADLINE_S
        while len(results) < len(self._pipes):
            open_ = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in results}
            ready = set(wait(list(open_), timeout=max(0.0, deadline - time.monotonic())))
            if not ready:
                self._break()
                raise TimeoutError(f"ranks {sorted(open_.values())} did not finish {case.__name__} in {DEADLINE_S:g} s")
            for pipe in (pipe for pipe in open_ if pipe in ready):
                problem, results[open_[pipe]] = pipe.recv()
                if problem:
                    self._break()
                    raise AssertionError(f"rank {open_[pipe]} of {case.__name__}:\n{problem}")
        return [results[rank] for rank in range(len(self._pipes))]

    def _wait_for_start(self) -> None:
        deadline = time.monotonic() + START_S
        for rank, pipe in enumerate([] if self.started else self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                self._break()
                raise TimeoutError(f"rank {rank} did not start in {START_S:g} s")
            assert pipe.recv() == "ready"
        self.started = True

    def _break(self) -> None:
        self.broken = True
        for process in self._processes:
            process.kill()

    def begin(self, case: Callable[..., Any], **arguments: Any) -> list[int]:
        """Start `case` on each rank, for `outcome` to wait for; the process numbers by rank."""
        self._wait_for_start()
        for pipe in self._pipes:
            pipe.send((case.__module__, case.__name__, arguments))
        return [process.pid or 0 for process in self._processes]

    def outcome(self, rank: int) -> tuple[str, Any]:
        """What became of a case on a rank: `returned` and what, `raised` and what, or `ended` and the exit status."""
        if not self._pipes[rank].poll(DEADLINE_S):
            raise TimeoutError(f"rank {rank} did not end within {DEADLINE_S:g} s")
        try:
            problem, result = self._pipes[rank].recv()
        except EOFError:
            self._processes[rank].join(timeout=10)
            return "ended", self._processes[rank].exitcode
        return ("raised", problem) if problem else ("returned", result)

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if process.is_alive():
                pipe.send(None)
        for process in self._processes:
            process.join(timeout=0 if self.broken else 10)
            if process.is_alive():
                process.kill()
