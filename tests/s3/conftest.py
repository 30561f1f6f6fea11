"""One real S3 server (SeaweedFS, the embedded default) for all tests here, in a temporary folder."""

import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.config import Storage
from pipeline.embedded import embedded_store, identity
from pipeline.storage import Store, open_store

READER = ("READERKEY0000001", "reader-secret-0123456789")
WRITER = ("WRITERKEY0000001", "writer-secret-0123456789")
# Good for one prefix, and for nothing else in the bucket.
TEAM = ("TEAMKEY000000001", "team-secret-0123456789")


@dataclass(frozen=True)
class Server:
    """The running server: its folder, the storage configuration, and means to make it fail."""

    folder: Path
    storage: Storage

    def state(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.folder / "server.json").read_text())
        return found

    @property
    def weed(self) -> int:
        return int(self.state()["weed"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The server accepts connections and says nothing, as a machine that hangs."""
        weed = self.weed
        os.kill(weed, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(weed, signal.SIGCONT)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("embedded")
    identity(folder)
    path = folder / "identity.json"
    content = json.loads(path.read_text())
    for name, (access, secret), actions in (
        ("reader", READER, ["Read:pipeline", "List:pipeline"]),
        ("writer", WRITER, ["Read:pipeline", "List:pipeline", "Write:pipeline"]),
        ("team", TEAM, ["Read:pipeline/team/*", "List:pipeline/team/*", "Write:pipeline/team/*"]),
    ):
        credentials = [{"accessKey": access, "secretKey": secret}]
        content["identities"].append({"name": name, "credentials": credentials, "actions": actions})
    path.write_text(json.dumps(content))
    with embedded_store(folder) as storage:
        yield Server(folder, storage)


@pytest.fixture
def store(server: Server) -> Store:
    """An empty place in the server for one test."""
    return open_store(server.storage, retry_seconds=60).child(f"test-{secrets.token_hex(4)}")


def wait_until(done: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll until `done`, or fail saying what was waited for."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
