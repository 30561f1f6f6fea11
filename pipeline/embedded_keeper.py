"""Keeps the embedded S3 server running while anybody uses it: `python embedded_keeper.py FOLDER WEED`.

Started by pipeline/embedded.py and then on its own: it detaches, owns `weed` as its child, starts it again if it dies,
and stops it when nobody holds the shared lock on FOLDER/users.lock any more. The kernel drops a lock with the process
that held it, so this works for users that were killed, too; and it kills weed should the keeper itself die.

Only the standard library is imported, so that this starts in 50 ms and stays small.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.25
START_SECONDS = 60.0
TRIES = 5
PR_SET_PDEATHSIG = 1
SERVICES = ("master", "volume", "filer", "s3")
# Below the range from which Linux takes ports of outgoing connections, and off weed's own and other common ones.
PORTS = range(20_000, 30_000)


def main(folder: Path, weed: str) -> None:
    """Detach, then serve until nobody uses the server."""
    os.umask(0o077)
    # Taken before detaching, so that whoever started this finds the lock held; a fork inherits it.
    mine = (folder / "keeper.lock").open("a+")
    fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # Ctrl-C goes to the user's terminal group, which this process has left; a hang-up would only lose data in flight.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with mine, (folder / "users.lock").open("a+") as users:
        _serve(folder, weed, users.fileno())


def _serve(folder: Path, weed: str, users: int) -> None:
    state = folder / "server.json"
    server: Server | None = None
    problem = ""
    try:
        for _ in range(TRIES):
            server = Server(folder, weed, server.ports if server and server.was_ready else free_ports())
            if server.wait(users):
                _publish(state, {"endpoint": server.endpoint, "keeper": os.getpid(), "weed": server.process.pid})
                if server.watch(users):
                    return
                problem = f"the server ended with status {server.process.returncode}"
            elif server.unused:
                return
            else:
                problem = f"the server did not start (status {server.process.poll()})"
            server.stop()
        _publish(state, {"error": f"{problem}, {TRIES} times"})
    except OSError as error:
        _publish(state, {"error": f"the server cannot be started: {error}"})
    finally:
        if server is not None:
            server.stop()
        with contextlib.suppress(FileNotFoundError):
            if "error" not in json.loads(state.read_text()):
                state.unlink()


class Server:
    """One `weed` process with all of its services, on loopback ports."""

    def __init__(self, folder: Path, weed: str, ports: list[int]) -> None:
        self.ports = ports
        self.was_ready = False
        self.unused = False
        self.endpoint = f"http://127.0.0.1:{ports[6]}"
        sockets = folder / "sockets"
        sockets.mkdir(exist_ok=True)
        (folder / "data").mkdir(exist_ok=True)
        for leftover in (folder / "data").glob("m[0-9]*"):
            # The master keeps its election state in a folder named after its port, which is another one each time.
            shutil.rmtree(leftover, ignore_errors=True)
        record = sockets / "ports.json"
        if record.exists():  # of a keeper that was killed and could not tidy up
            remove_sockets(json.loads(record.read_text()))
        record.write_text(json.dumps(ports))
        keeper = os.getpid()

        def before_exec() -> None:
            if sys.platform == "linux":  # elsewhere a killed keeper leaves weed running
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)

        with (folder / "weed.log").open("wb") as log:
            self.process = subprocess.Popen(
                [weed, *arguments(folder, ports)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=sockets,
                env=environment(folder),
                preexec_fn=before_exec,  # noqa: PLW1509 - this process has one thread
            )

    def wait(self, users: int) -> bool:
        """Whether the S3 port answers in time, the process being alive and in use."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.ports[6]), timeout=1).close()
                # weed may be on its way out because another port was taken.
                time.sleep(0.02)
                self.was_ready = self.process.poll() is None
                return self.was_ready
            if _unused(users):
                self.unused = True
                return False
            time.sleep(0.05)
        return False

    def watch(self, users: int) -> bool:
        """Return True as soon as nobody uses the server, False if it died before."""
        while self.process.poll() is None:
            if _unused(users):
                return True
            time.sleep(POLL_SECONDS)
        return False

    def stop(self) -> None:
        """Kill it. Asked politely weed takes 15 s, and what it has acknowledged is in its files already."""
        self.process.kill()
        self.process.wait()
        remove_sockets(self.ports)


def arguments(folder: Path, ports: list[int]) -> list[str]:
    """Everything on loopback; no telemetry; volumes grow as they are written and are never reserved in advance."""
    options: dict[str, object] = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": folder / "data",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 1024,
        "master.vacuumIntervalSeconds": 300,  # gives the space of deleted checkpoints back
        "master.electionTimeout": "500ms",  # it stands alone, so nobody else can be elected
        "master.resumeState": "false",  # the state names the ports of last time
        "volume.max": 1000,
        "volume.minFreeSpace": "64MiB",
        "volume.preStopSeconds": 0,
        "s3.config": folder / "identity.json",
        "s3.autoCreateBucket": "false",  # a wrong bucket name is an error, as it is everywhere else
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": "s3.sock",  # in the current folder: a whole path may be longer than sockets allow
        "filer.localSocket": "filer.sock",
    }
    for service, (http, grpc) in zip(SERVICES, zip(ports[::2], ports[1::2], strict=True), strict=True):
        options[f"{service}.port"] = http
        options[f"{service}.port.grpc"] = grpc
    return ["-logtostderr=true", "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in options.items())]


def environment(folder: Path) -> dict[str, str]:
    """Nothing of the user's: weed takes AWS_* as an identity and S3_PORT and WEED_* as settings.

    The signing keys keep other users of this machine from reading objects over weed's inner HTTP ports.
    """
    keys = ("SIGNING_KEY", "SIGNING_READ_KEY", "FILER_SIGNING_KEY", "FILER_SIGNING_READ_KEY")
    signing = {f"WEED_JWT_{key}": secrets.token_hex(32) for key in keys}
    return {"HOME": str(folder), "PATH": os.defpath, "GOMEMLIMIT": "256MiB", **signing}


def free_ports() -> list[int]:
    """Eight ports that were free just now. Should one be taken before weed binds it, weed ends and others are tried."""
    ports: list[int] = []
    held: list[socket.socket] = []
    try:
        while len(ports) < 2 * len(SERVICES):
            port = random.choice(PORTS)
            listener = socket.socket()
            held.append(listener)
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
    finally:
        for listener in held:
            listener.close()
    return ports


def remove_sockets(ports: list[int]) -> None:
    """weed makes these in /tmp whatever it is told, and leaves them there when it is killed."""
    for service, port in zip(SERVICES, ports[1::2], strict=True):
        Path(f"/tmp/seaweedfs-{service}-grpc-{port}.sock").unlink(missing_ok=True)  # noqa: S108


def _unused(users: int) -> bool:
    """Whether no user holds the lock. If so the keeper has it now and keeps it, and whoever comes waits for its end."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _publish(state: Path, content: dict[str, object]) -> None:
    temporary = state.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.replace(state)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
