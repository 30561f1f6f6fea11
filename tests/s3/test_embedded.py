"""The embedded server's life: shared, kept while used, gone afterwards, its data still there."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.embedded import embedded_store
from pipeline.errors import RunError
from pipeline.storage import open_store
from tests.s3.conftest import is_running, wait_until

USER = """
import sys, time
from pathlib import Path
from pipeline.embedded import embedded_store
from pipeline.storage import open_store
with embedded_store(Path(sys.argv[1])) as storage:
    open_store(storage).write("from-user", b"x")
    print("ready", flush=True)
    time.sleep(60)
"""


def start_user(folder: Path) -> "subprocess.Popen[bytes]":
    user = subprocess.Popen([sys.executable, "-c", USER, str(folder)], stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"ready\n"
    return user


def processes(folder: Path) -> tuple[int, int]:
    state = json.loads((folder / "server.json").read_text())
    return state["keeper"], state["weed"]


def sockets_of(folder: Path) -> list[Path]:
    """The files that the server, now running, has made in /tmp."""
    ports = json.loads((folder / "sockets" / "ports.json").read_text())
    return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock")]


def test_data_outlive_the_server_and_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("PIPELINE_DATA_DIR", str(tmp_path))
    start = time.monotonic()
    with embedded_store() as storage:
        assert time.monotonic() - start < 60  # 3.5 s on an idle machine
        assert storage.path == "s3://pipeline/runs"
        secret = os.environ["AWS_SECRET_ACCESS_KEY"]
        assert "AWS_SESSION_TOKEN" not in os.environ
        open_store(storage).write("kept", b"x")
        pids = processes(tmp_path / "s3")
        sockets = sockets_of(tmp_path / "s3")
        assert sockets
        assert secret not in repr(storage)
    assert os.environ["AWS_ACCESS_KEY_ID"] == "mine"
    assert os.environ["AWS_SESSION_TOKEN"] == "token"
    wait_until(lambda: not any(map(is_running, pids)), f"keeper and server {pids} gone", 10)
    assert not any(path.exists() for path in sockets)
    assert not (tmp_path / "s3" / "server.json").exists()
    assert secret not in (tmp_path / "s3" / "weed.log").read_text()
    with embedded_store() as storage:
        assert open_store(storage).read("kept") == b"x"
        assert secret == os.environ["AWS_SECRET_ACCESS_KEY"]
        assert stat.S_IMODE((tmp_path / "s3" / "identity.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "s3").stat().st_mode) == 0o700
        for pid in processes(tmp_path / "s3"):
            assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_two_users_share_a_server_until_the_last_is_killed(tmp_path: Path) -> None:
    first = start_user(tmp_path)
    second = start_user(tmp_path)
    try:
        keeper, weed = processes(tmp_path)
        first.kill()
        first.wait()
        time.sleep(0.6)  # two looks of the keeper
        assert is_running(weed)
        with embedded_store(tmp_path) as storage:
            assert processes(tmp_path) == (keeper, weed)
            assert open_store(storage).read("from-user") == b"x"
        time.sleep(0.6)
        assert is_running(weed)
    finally:
        for user in (first, second):
            user.kill()
            user.communicate()
    wait_until(lambda: not is_running(keeper) and not is_running(weed), "keeper and server gone", 10)


def test_a_killed_keeper_takes_its_server_along_and_is_replaced(tmp_path: Path) -> None:
    user = start_user(tmp_path)
    try:
        keeper, weed = processes(tmp_path)
        sockets = sockets_of(tmp_path)
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not is_running(weed), "the server died with its keeper", 5)
        with embedded_store(tmp_path) as storage:
            assert open_store(storage).read("from-user") == b"x"
            pids = processes(tmp_path)
            assert keeper not in pids
    finally:
        user.kill()
        user.communicate()
    wait_until(lambda: not any(map(is_running, pids)), "keeper and server gone", 10)
    assert not any(path.exists() for path in sockets)


def test_a_server_that_cannot_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text('{"identities": [{"credentials": [{"accessKey": "a", "secretKey": "b"}]}]}')
    (tmp_path / "data").write_text("not a folder")
    start = time.monotonic()
    with (
        pytest.raises(RunError, match=r"embedded store: the server cannot be started: .*/data.*last lines of weed.log"),
        embedded_store(tmp_path),
    ):
        pass
    assert time.monotonic() - start < 60
