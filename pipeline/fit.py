"""The driver on Ray: datasets -> TorchTrainer.fit() -> result."""

import logging
import os
import re
import time
from typing import Any

import ray
import ray.exceptions
import ray.train
import ray.train.torch

from pipeline import checkpoint, cluster, loop, tracking
from pipeline.config import Config
from pipeline.errors import RunError, StorageError
from pipeline.preflight import Prepared
from pipeline.progress import Display, LatestValues
from pipeline.records import METRICS
from pipeline.result import Result, versions
from pipeline.run import RunFolder
from pipeline.worker import Job, train_loop_per_worker

LOGGER = logging.getLogger("pipeline")
HEALTH_CHECK_LATER_S = 60.0


def fit(prepared: Prepared, folder: RunFolder, capacity: cluster.Capacity, began: float) -> Result:
    """Train what has been checked, and write its result.

    Args:
        prepared: the configuration with what the checks have found out.
        folder: the run's folder, taken over here.
        capacity: what the connected cluster has.
        began: `time.monotonic()` at the start of the command.

    Raises:
        RunError: the run failed; the same command goes on from its last checkpoint.
    """
    config, facts = prepared.config, prepared.facts
    folder.take_over(config, facts)
    use_gpu = cluster.uses_gpu(config, capacity)
    resources = cluster.per_worker(config, use_gpu)
    board = ray.remote(num_cpus=0)(LatestValues).remote()
    job = Job(config, facts, folder.owner, _threads(config, capacity, resources), None, board)
    settings: dict[str, Any] = {}
    if config.data.engine == "ray":
        job, settings = _with_ray_data(job, folder)
    # What FSDP keeps in the memory of the CPU is summed over the ranks there, which NCCL cannot do.
    backend = "cpu:gloo,cuda:nccl" if use_gpu and config.strategy.cpu_offload else None
    filesystem, path = folder.store.filesystem()
    trainer = ray.train.torch.TorchTrainer(
        train_loop_per_worker,
        train_loop_config=job.to_dict(),
        torch_config=ray.train.torch.TorchConfig(backend=backend, timeout_s=config.run.collective_timeout_s),
        scaling_config=ray.train.ScalingConfig(
            num_workers=config.scaling.workers, use_gpu=use_gpu, resources_per_worker=resources
        ),
        run_config=ray.train.RunConfig(
            name=path.rsplit("/", 1)[1],
            storage_path=path.rsplit("/", 1)[0],
            storage_filesystem=filesystem,
            failure_config=ray.train.FailureConfig(max_failures=config.run.max_failures),
        ),
        **settings,
    )
    # Ray's own list of checkpoints, of an earlier start. Resuming goes by manifests, so that a list written by a driver
    # that has been superseded, or naming checkpoints that retention has deleted, cannot mislead or stop this start.
    _forget_snapshot(folder)
    # A worker that is frozen as a whole cannot end itself; then Ray's controller does, which takes this from here, but
    # later than the other workers end, who know more to say.
    own = max(config.run.stall_timeout_s, config.run.collective_timeout_s)
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(own + HEALTH_CHECK_LATER_S)
    # Workers stay in the driver's folder, where `model.path` or a file that a function of the user's opens may lie.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    LOGGER.info("training on %s", capacity.describe())
    with Display(lambda: ray.get(board.read.remote())):
        try:
            outcome = trainer.fit().return_value
        except ray.train.TrainingFailedError as error:
            # Of a worker that has ended itself, or was ended by NCCL, Ray only knows that it is gone.
            told, standing = _last_words(board)
            raise RunError(f"training failed: {told}" if told else _with_others(_cause(error), standing)) from error
        except ray.exceptions.RayError as error:
            # Ray's own processes: the controller or the board, killed for memory or with their node.
            raise RunError(
                f"Ray lost a process that the run needs: {_first(error)}; "
                "the same command goes on from the last checkpoint"
            ) from error
    if outcome is None:
        raise RunError("the workers ended without a result; see the logs in the run's folder")
    if "problems" in outcome:
        raise RunError(*outcome["problems"])
    return _finish(prepared, folder, outcome, time.monotonic() - began)


def _last_words(board: Any) -> tuple[str | None, dict[int, str]]:
    """What ranks have said last, if whoever keeps it is still there."""
    try:
        told, standing = ray.get([board.last_words.remote(), board.standing.remote()])
    except ray.exceptions.RayError:
        return None, {}
    return told, standing


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _forget_snapshot(folder: RunFolder) -> None:
    try:
        folder.store.delete("checkpoint_manager_snapshot.json")
    except StorageError as error:
        # Where nothing can be deleted, retention deletes nothing either, and all that the list names is there.
        LOGGER.warning("Ray's list of checkpoints stays: %s", error)


def _with_ray_data(job: Job, folder: RunFolder) -> tuple[Job, dict[str, Any]]:
    """Tokenise on the cluster, and what TorchTrainer takes to deal the rows."""
    from dataclasses import replace

    from pipeline.data import ray_engine

    config, facts = job.config, job.facts
    tokens = {split: ray_engine.tokenise(config, facts, split) for split in facts.files}
    store = folder.store

    def next_step() -> int:
        # Called by Ray's controller at each start of a group of workers, just before they look for the same checkpoint.
        found = checkpoint.complete(store)
        return found[-1].step if found else 0

    settings = {
        "datasets": ray_engine.datasets(config, tokens, next_step),
        "dataset_config": ray.train.DataConfig(
            datasets_to_split=list(tokens), execution_options=ray_engine.execution_options()
        ),
    }
    return replace(job, indices=ray.put({split: held.index for split, held in tokens.items()})), settings


def _threads(config: Config, capacity: cluster.Capacity, resources: dict[str, float]) -> int:
    """Threads of a worker: the CPUs it has asked for, or its share of this machine's cores."""
    if capacity.local and "CPU" not in config.scaling.resources_per_worker:
        return max(1, len(os.sched_getaffinity(0)) // config.scaling.workers)
    return max(1, int(resources.get("CPU", 1)))


def _with_others(cause: str, standing: dict[int, str]) -> str:
    """The cause, and what those ranks are at that it does not tell of: a worker that fails has asked for the others."""
    others = {rank: words for rank, words in standing.items() if not re.search(rf"\brank {rank}\b", cause)}
    return cause + "".join(f"; rank {rank} {words}" for rank, words in sorted(others.items()))


def _cause(error: Exception) -> str:
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, cause = min(failures.items())
        if "running low on memory" in str(cause):
            return (
                f"training failed on rank {rank}: its node ran out of memory and Ray ended it; give the node more, or "
                "take a smaller training.batch_size_per_worker or fewer workers on it"
            )
        lines = [line for line in str(cause).strip().splitlines() if line.strip()]
        last = lines[-1].strip() if lines else type(cause).__name__
        # A traceback's last line begins with the type, which our own errors can do without.
        return f"training failed on rank {rank}: {re.sub(r'^pipeline[.]errors[.][A-Za-z]+: ', '', last)}"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"training failed: {lines[-1].strip()}"


def _finish(prepared: Prepared, folder: RunFolder, outcome: dict[str, Any], seconds: float) -> Result:
    """Merge the metrics and write `result.json`, in that order: who sees the result finds everything it names."""
    state = loop.State(**outcome["state"])
    config, facts = prepared.config, prepared.facts
    folder.check_owner()
    lines = tracking.merged(folder.store, state.step)
    tracking.write_lines(folder.store, METRICS, lines)
    found = checkpoint.complete(folder.store)
    if not found:
        raise RunError("training ended but no checkpoint is complete")
    best = [name for name in found if name.step == state.best_step]
    final = state.history[-1] if state.history else {}
    result = Result(
        name=config.run.name,
        status="finished",
        steps=state.step,
        total_steps=outcome["steps"],
        epochs=state.step / outcome["steps_per_epoch"],
        train_rows=facts.rows["train"],
        eval_rows=facts.rows.get("validation", 0),
        metrics={key: value for key, value in final.items() if key.startswith("eval_")},
        history=state.history,
        best_checkpoint=str(best[-1]) if best else str(found[-1]),
        last_checkpoint=str(found[-1]),
        attempts=outcome["attempt"],
        resumed_from_step=outcome["resumed_from_step"],
        world_size=config.scaling.workers,
        strategy=config.strategy.kind,
        versions=versions(),
        seconds=round(seconds, 1),
        train_seconds=round(outcome["train_seconds"], 1),
        data_wait_share=outcome["data_wait_share"],
        truncated_rows=outcome["truncated_rows"],
        stopped_early=state.stopped_early,
        final_learning_rate=outcome["final_learning_rate"],
        parameters_sha256=outcome["parameters_sha256"],
        workers=outcome["workers"],
        uri=folder.store.uri,
    )
    folder.write_result(result.to_json(), prepared.seen_result)
    return result
