"""The Ray cluster a job runs on: the one it is in, the one of RAY_ADDRESS, or a local one that it starts."""

import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from pipeline.config import Config, Storage
from pipeline.errors import RunError, UserError

LOGGER = logging.getLogger("pipeline")
# Ray Data's tasks run beside the workers, and without a CPU of their own a job waits for ever.
DATA_CPUS = 1.0
WAIT_FOR_NODES_S = 120.0
STARTS = 3


@dataclass(frozen=True)
class Capacity:
    """What a cluster has: the resources of each node, e.g. `{"CPU": 8, "GPU": 1}`."""

    nodes: tuple[Mapping[str, float], ...]
    local: bool

    def total(self, resource: str) -> float:
        """Over all nodes."""
        return sum(node.get(resource, 0.0) for node in self.nodes)

    def describe(self) -> str:
        """In a few words."""
        words = f"{self.total('CPU'):g} CPUs and {self.total('GPU'):g} GPUs"
        if self.local:
            return f"a local Ray with {words} (CPUs: workers share the cores of this machine, {_cores()})"
        return f"{len(self.nodes)} nodes with {words}"


def address() -> str | None:
    """Address of an existing cluster, or None for a local one.

    Raises:
        UserError: RAY_ADDRESS is that of the job server.
    """
    found = os.environ.get("RAY_ADDRESS")
    if found and found.startswith("http"):
        raise UserError(f"RAY_ADDRESS: found {found}, expected HOST:6379, ray://HOST:10001 or auto")
    # Where Ray notes the node that runs on this machine.
    noted = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    if not found and "KUBERNETES_SERVICE_HOST" in os.environ and noted.exists():
        return "auto"
    return None if found == "local" else found


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def local_cpus() -> int:
    """CPUs that a local Ray advertises: workers of a small machine share its cores."""
    return max(4, 2 * _cores())


def local_capacity() -> Capacity:
    """What a local Ray would have, without starting it."""
    import torch

    return Capacity(({"CPU": float(local_cpus()), "GPU": float(torch.cuda.device_count())},), local=True)


def per_worker(config: Config, use_gpu: bool) -> dict[str, float]:
    """Resources of one worker."""
    wanted = {"CPU": 1.0, **config.scaling.resources_per_worker}
    if use_gpu:
        wanted.setdefault("GPU", 1.0)
    return wanted


def uses_gpu(config: Config, capacity: Capacity) -> bool:
    """Whether workers get GPUs; `auto` takes them if there are enough."""
    if config.scaling.use_gpu == "auto":
        wanted = config.scaling.resources_per_worker.get("GPU", 1.0)
        return wanted > 0 and capacity.total("GPU") >= wanted * config.scaling.workers
    return config.scaling.use_gpu


def problems(config: Config, capacity: Capacity) -> list[str]:
    """What the cluster can never hold or reach, a line each."""
    return [*_unfit(config, capacity), *_unreachable(config.storage, capacity)]


def _unreachable(storage: Storage, capacity: Capacity) -> list[str]:
    """Storage that is another place on each node of a cluster, so that workers would not find each other's files."""
    path, count = storage.path or "", len(capacity.nodes)
    if capacity.local or count < 2:
        return []
    words = f"on each of the cluster's {count} nodes; expected"
    if path.startswith("s3://"):
        from pipeline.s3 import LOOPBACK, settings_of

        with suppress(UserError):  # a wrong endpoint is said by the storage probe
            endpoint = settings_of(storage, 0).endpoint_url or ""
            if urlsplit(endpoint).hostname in LOOPBACK:
                return [f"storage.endpoint_url: {endpoint} is another machine {words} one that all of them reach"]
    elif not storage.shared:
        expected = "s3://bucket/prefix, or storage.shared=true if all of them mount it at that place"
        return [f"storage.path: {path} is a folder of its own {words} {expected}"]
    return []


def _unfit(config: Config, capacity: Capacity) -> list[str]:
    use_gpu = uses_gpu(config, capacity)
    wanted = {name: amount for name, amount in per_worker(config, use_gpu).items() if amount > 0}
    found = []
    if not wanted:
        found.append(
            "scaling.resources_per_worker: CPU is 0 and there is no GPU, so that a worker has nothing; expected more "
            "than 0"
        )
        return found
    fitting = sum(
        min((int(node.get(name, 0.0) / amount) for name, amount in wanted.items()), default=0)
        for node in capacity.nodes
    )
    workers = config.scaling.workers
    words = ", ".join(f"{amount:g} {name}" for name, amount in sorted(wanted.items()))
    hint = "; to train on CPUs set scaling.use_gpu=false" if use_gpu and not capacity.total("GPU") else ""
    if fitting < workers:
        found.append(
            f"scaling.workers: {workers} workers of {words} each, but {capacity.describe()} can hold {fitting}{hint}"
        )
    elif config.data.engine == "ray":
        needed = workers * wanted.get("CPU", 0.0) + DATA_CPUS
        if capacity.total("CPU") < needed:
            found.append(
                f"scaling.workers: {workers} workers of {words} each and {DATA_CPUS:g} CPU for Ray Data are {needed:g} "
                f"CPUs, but {capacity.describe()}; take fewer workers or data.engine=torch"
            )
    if config.training.mixed_precision == "fp16" and not use_gpu and config.strategy.kind != "deepspeed":
        found.append("training.mixed_precision: fp16 needs a GPU, and this job runs on CPUs; expected no or bf16")
    return found


@contextmanager
def connected(config: Config) -> Iterator[Capacity]:
    """Connect to the cluster, or start a local one for the block; waits for nodes that are still joining.

    Raises KeyboardInterrupt if the block is ended by a signal.
    """
    import ray

    found = address()
    # The workers' own words are in the run's logs; between the lines of progress they would only be in the way.
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": LOGGER.isEnabledFor(logging.DEBUG)}
    if found is None:
        options |= {"address": "local", "num_cpus": local_cpus(), "include_dashboard": False}
    else:
        options["address"] = found
    # A cold node takes longer than Ray's 60 s to start workers.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "180")
    # Accelerators that are not reserved stay visible to tasks that reserve none, as Ray is going to do it anyway.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    before = signal.getsignal(signal.SIGTERM)
    _start(options)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main:
        # Ray's own answer is a dump of stacks, and SIGABRT.
        signal.signal(signal.SIGTERM, _interrupted)
    try:
        capacity = _capacity(local=found is None)
        deadline = time.monotonic() + (0 if found is None else WAIT_FOR_NODES_S)
        while _unfit(config, capacity) and time.monotonic() < deadline:
            time.sleep(2)
            capacity = _capacity(local=False)
        yield capacity
    except SystemExit as error:
        # What Ray Train's own handler of Ctrl-C raises, with a status that says nothing.
        raise KeyboardInterrupt from error
    finally:
        ray.shutdown()
        if in_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _interrupted(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _start(options: dict[str, Any]) -> None:
    """Connect, or start a node; on a busy machine that can take longer than the 30 s that Ray waits, so up to 3 times.

    Raises:
        RunError: Ray does not start or answer.
    """
    import ray

    ours = psutil.Process()
    for attempt in range(1, STARTS + 1):
        before = set(ours.children(recursive=True))
        try:
            ray.init(**options)
            return
        except Exception as error:
            ray.shutdown()
            # Daemons of the failed start: Ray forgets them, and they would slow down the next.
            for process in set(ours.children(recursive=True)) - before:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            words = str(error).strip().splitlines()[0]
            if attempt == STARTS:
                raise RunError(f"Ray does not start or answer ({options['address']}): {words}") from error
            LOGGER.warning("Ray did not start (%s); trying again", words)


def _capacity(local: bool) -> Capacity:
    import ray

    return Capacity(tuple(node["Resources"] for node in ray.nodes() if node["Alive"]), local)
