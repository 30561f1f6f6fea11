"""The Docker engine that the cluster's nodes are containers of: the one of this machine, else one of our own.

Our own keeps everything under the cache folder, listens on a socket there, and is stopped when the suite ends.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.e2e.command import CommandError, Tools

HERE = Path(__file__).parent
PACKAGES = [
    "docker.io",
    "containerd",
    "runc",
    "iptables",
    "iproute2",
    "debootstrap",
    "jq",
    "gcc",
    "libc6-dev",
    "procps",
]
CAP_SYS_RESOURCE = 24
DEFAULT_SOCKET = Path("/var/run/docker.sock")
EXEC_ROOT = Path("/run/pipeline-e2e")
CLUSTER = "pipeline-e2e"


class SetupError(RuntimeError):
    """The machine lacks something that the suite may not, or cannot, install by itself."""


def cache_folder() -> Path:
    """Where built programs, the engine's images and the cluster's kubeconfig lie; `make clean` removes it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipeline" / "e2e"


def may_set_up() -> bool:
    """Whether system packages may be installed and an engine started: by root, on Debian or Ubuntu, without SETUP=0."""
    return os.environ.get("SETUP") != "0" and os.geteuid() == 0 and Path("/etc/debian_version").exists()


def lacks_sys_resource() -> bool:
    """Whether this process could never have CAP_SYS_RESOURCE, as in some sandboxes, though it is root."""
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    return not int(bounding, 16) >> CAP_SYS_RESOURCE & 1


def install_packages() -> None:
    """Install the Debian packages that are missing. Raises SetupError if that is not allowed here."""
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *PACKAGES]
    known = shutil.which("dpkg-query") is not None
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout if known else ""
    missing = [name for name in PACKAGES if f"{name} installed" not in shown.splitlines()]
    if not missing:
        return
    if not may_set_up():
        raise SetupError(
            "the end-to-end tests need Docker and the packages "
            f"{' '.join(missing)}: install them, or run as root on Debian or Ubuntu without SETUP=0"
        )
    print(f"installing {' '.join(missing)} (SETUP=0 forbids it)", flush=True)
    install = ["apt-get", "install", "-qq", "--no-install-recommends", "-y", *missing]
    for call in (["apt-get", "update", "-qq"], install):
        done = subprocess.run(
            call, capture_output=True, text=True, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
        if done.returncode != 0:
            raise SetupError(f"{' '.join(call)} failed:\n{done.stderr[-2000:]}")


def tools_with_docker() -> Tools:
    """Tools whose folder holds the Docker client to use, with DOCKER_HOST set if the engine is our own."""
    folder = cache_folder() / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    tools = Tools(folder)
    if "DOCKER_HOST" not in os.environ and not DEFAULT_SOCKET.exists():
        install_packages()
        if not DEFAULT_SOCKET.exists():  # where systemd runs, installing Docker has started it
            tools.environment["DOCKER_HOST"] = f"unix://{_socket()}"
    _choose_client(tools)
    return tools


def _choose_client(tools: Tools) -> None:
    """Put first on PATH a client that can build: 20.10 has BuildKit inside, later ones need the buildx plugin."""
    link = tools.folder / "docker"
    candidates = [Path(folder) / "docker" for folder in (*os.get_exec_path(), "/usr/bin")]
    for candidate in candidates:
        if candidate == link or not os.access(candidate, os.X_OK):
            continue
        version = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False).stdout
        builds = subprocess.run([candidate, "buildx", "version"], capture_output=True, check=False).returncode == 0
        if builds or " 20.10." in version:
            link.unlink(missing_ok=True)
            link.symlink_to(candidate)
            tools.environment["DOCKER_BUILDKIT"] = "1"
            return
    raise SetupError("no Docker client with BuildKit on PATH: install its plugin (Debian, Ubuntu: docker-buildx)")


def start(tools: Tools) -> None:
    """Start our own engine if that is the one to use and it does not run. Waits until it answers, a minute at most."""
    if answers(tools):
        return
    if not is_our_own(tools):
        raise SetupError("Docker does not answer: start it, or give this user access to its socket")
    if not may_set_up():
        raise SetupError("no Docker engine runs: start one, or run as root on Debian or Ubuntu without SETUP=0")
    root = cache_folder()
    (root / "docker").mkdir(parents=True, exist_ok=True)
    # What an engine that was killed has left: a process id that may by now be another program's.
    for path in (root / "docker.pid", root / "docker.sock", EXEC_ROOT / "containerd" / "containerd.pid"):
        path.unlink(missing_ok=True)
    settings: dict[str, object] = {}
    if lacks_sys_resource():
        # A copy, since the engine looks for it whenever a container starts, also from another checkout.
        runc = root / "tools" / "runc-without-sys-resource"
        shutil.copy(HERE / "node" / runc.name, runc)
        settings = {"runtimes": {runc.name: {"path": str(runc)}}, "default-runtime": runc.name}
    (root / "daemon.json").write_text(json.dumps(settings))
    call = [
        "dockerd",
        f"--config-file={root / 'daemon.json'}",
        f"--host=unix://{_socket()}",
        f"--data-root={root / 'docker'}",
        f"--exec-root={EXEC_ROOT}",
        f"--pidfile={root / 'docker.pid'}",
    ]
    with (root / "docker.log").open("wb") as log:
        engine = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + 60
    while not answers(tools):
        if engine.poll() is not None or time.monotonic() > deadline:
            raise SetupError(f"dockerd did not start:\n{(root / 'docker.log').read_text(errors='replace')[-3000:]}")
        time.sleep(0.5)


def is_our_own(tools: Tools) -> bool:
    """Whether the engine is the one that this module starts."""
    return "DOCKER_HOST" in tools.environment


def answers(tools: Tools) -> bool:
    """Whether the engine answers."""
    try:
        tools.run("docker", "version", timeout=20)
    except (CommandError, subprocess.TimeoutExpired):
        return False
    return True


def stop() -> None:
    """Stop our own engine, if it runs, and wait for its end; its images stay in the cache."""
    _end_process()
    # An engine that was killed leaves its folder mounted on itself, and then nobody can remove the folder.
    folder = cache_folder() / "docker"
    while folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)


def _end_process() -> None:
    try:
        pid = int((cache_folder() / "docker.pid").read_text())
        if b"dockerd" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while _lives(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.2)
    shutil.rmtree(EXEC_ROOT, ignore_errors=True)


def _lives(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has waited for yet has."""
    with contextlib.suppress(ChildProcessError):  # started by an earlier run of the suite
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _socket() -> Path:
    return cache_folder() / "docker.sock"
