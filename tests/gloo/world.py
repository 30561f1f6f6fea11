"""A world of processes that stays up for a test session and runs one case after the other in all of them."""

import importlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

DEADLINE_S = 120.0


def _member(rank: int, size: int, port: int, pipe: Connection) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    import torch
    from accelerate.state import AcceleratorState

    torch.set_num_threads(1)
    while (order := pipe.recv()) is not None:
        module, name, arguments = order
        AcceleratorState._reset_state(reset_partial_state=True)
        try:
            pipe.send((None, getattr(importlib.import_module(module), name)(**arguments)))
        except Exception:  # noqa: BLE001  (whatever it was is told to the test)
            pipe.send((traceback.format_exc(), None))


class World:
    """`size` processes in one gloo group (a single one is no group at all)."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.broken = False
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_member, args=(rank, size, port, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, case: Callable[..., Any], **arguments: Any) -> list[Any]:
        """What `case` returns on each rank. A rank that does not answer within two minutes is an error, not a hang."""
        for pipe in self._pipes:
            pipe.send((case.__module__, case.__name__, arguments))
        results = []
        for rank, pipe in enumerate(self._pipes):
            # Unless all have answered well: a late answer would be taken for that of the next case.
            self.broken = True
            if not pipe.poll(DEADLINE_S):
                raise TimeoutError(f"rank {rank} did not finish {case.__name__} within {DEADLINE_S:g} s")
            problem, result = pipe.recv()
            if problem:
                raise AssertionError(f"rank {rank} of {case.__name__}:\n{problem}")
            results.append(result)
        self.broken = False
        return results

    def begin(self, case: Callable[..., Any], **arguments: Any) -> list[int]:
        """Start `case` on each rank, for `outcome` to wait for; the process numbers by rank."""
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
