"""`check` and `train`: an address of storage, then all checks, and only then what starts workers."""

import time
from contextlib import ExitStack

from pipeline import cluster
from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.preflight import Check, preflight
from pipeline.result import Result
from pipeline.run import RunFolder
from pipeline.storage import resolve


def check(config: Config) -> list[Check]:
    """All checks and no training; a failed one is in the list, not raised."""
    with ExitStack() as stack:
        config = _with_storage(config, stack)
        if cluster.address() is None:
            capacity = cluster.local_capacity()
        else:
            capacity = stack.enter_context(cluster.connected(config))
        checks, _ = preflight(config, capacity, look=True)
        return checks.rows


def train(config: Config) -> Result:
    """Check everything, then train, or go on with the run of that name.

    Raises:
        UserError: something is wrong with the input; no worker was started and nothing written.
        RunError: the run failed later.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        config = _with_storage(config, stack)
        remote = cluster.address() is not None
        capacity = stack.enter_context(cluster.connected(config)) if remote else cluster.local_capacity()
        checks, prepared = preflight(config, capacity)
        if prepared is None:
            raise UserError(*checks.problems)
        folder = RunFolder.of(config)
        if prepared.complete:
            found, _ = folder.result()
            assert found is not None
            return Result.from_json(found, uri=folder.store.uri, already=True)
        # Ray Train takes seconds to import; who has something to mend does not wait for it.
        from pipeline.fit import fit

        if not remote:
            capacity = stack.enter_context(cluster.connected(config))
        return fit(prepared, folder, capacity, began)


def _with_storage(config: Config, stack: ExitStack) -> Config:
    """The configuration with an address of storage: the given one, or the embedded server's, started for the block."""
    if config.storage.path is None:
        if cluster.address() is not None:
            raise UserError("storage.path: not given; on a cluster expected s3://bucket/prefix that all nodes reach")
        from pipeline.embedded import embedded_store

        return config.model_copy(update={"storage": stack.enter_context(embedded_store())})
    return config.model_copy(update={"storage": resolve(config.storage)})
