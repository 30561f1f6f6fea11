"""Does storage do what a run needs? Asked before any worker is: list, write, read, claim and delete one small object.

To claim is to write under a condition, by which attempts of the same run are kept apart. Some stores that speak the S3
protocol ignore conditions without a word, so it is tried: the same name cannot be claimed twice.
"""

import dataclasses
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import botocore.exceptions as aws

from pipeline.config import Storage
from pipeline.errors import StorageError, UserError
from pipeline.redaction import shown
from pipeline.s3 import new_session
from pipeline.s3_errors import code_of, explain
from pipeline.s3_store import S3Store
from pipeline.storage import Conflict, Store, open_store

CONTENT = b"pipeline storage probe\n"


@dataclass(frozen=True)
class Step:
    """One request of the probe. `warning` says what failed if the run can do without it."""

    name: str
    seconds: float
    warning: str | None = None


def probe(storage: Storage) -> list[Step]:
    """List, write, read, claim and delete an object of a random name under `storage.path`; about 10 s at most.

    Raises UserError that names the step, the address, the endpoint, the region, the identity and what would be right.
    Refused deletions and ignored conditions are warnings: a run works without, but old checkpoints stay, or two
    attempts at the same time are not kept apart.
    """
    store = open_store(storage, retry_seconds=0)
    if isinstance(store, S3Store):
        # A run rides out an outage; a probe shall say quickly that there is one.
        quick = dataclasses.replace(store.settings, connect_timeout=3, read_timeout=5, attempts=1)
        store = S3Store(quick, store.bucket, store.prefix)
    name = f".probe-{secrets.token_hex(8)}"
    steps = [
        _step("list", store, lambda: _nothing(store.folders())),
        _step("write", store, lambda: _nothing(store.write(name, CONTENT, if_absent=True))),
        _step("read", store, lambda: _read_back(store, name)),
        _step("claim", store, lambda: _claim_again(store, name)),
    ]
    start = time.monotonic()
    try:
        store.delete(name)
    except StorageError as error:
        warning = f"{_clause(error)}; old checkpoints cannot be removed: grant s3:DeleteObject"
        return [*steps, Step("delete", time.monotonic() - start, warning)]
    return [*steps, Step("delete", time.monotonic() - start)]


def _step(name: str, store: Store, action: Callable[[], str | None]) -> Step:
    start = time.monotonic()
    try:
        warning = action()
    except (OSError, RecursionError) as error:  # a place such as /proc, or folders by the thousand
        words = (error.strerror if isinstance(error, OSError) else None) or "nested too deeply"
        raise UserError(
            f"storage.path: {shown(store.uri)[1:-1]}: step '{name}' failed: {words.lower()}; expected a "
            "folder that files can be written to, or s3://bucket/prefix"
        ) from error
    except StorageError as error:
        where = (
            f"; {_identity()}, {store.settings.place}, bucket {store.bucket!r}" if isinstance(store, S3Store) else ""
        )
        permission = PERMISSION.get(name, "") if "forbidden" in _clause(error) and where else ""
        if "NotImplemented" in _clause(error) and name == "write":
            permission = "; a run needs conditional writes (If-None-Match)"
        raise UserError(
            f"storage.path: {store.uri}: step '{name}' failed: {_clause(error)}{permission}{where}"
        ) from error
    return Step(name, time.monotonic() - start, warning)


PERMISSION = {
    "list": "; grant s3:ListBucket on the bucket",
    "write": "; grant s3:PutObject on the objects",
    "read": "; grant s3:GetObject on the objects",
}


def _claim_again(store: Store, name: str) -> str | None:
    try:
        store.write(name, CONTENT + b"again\n", if_absent=True)
    except Conflict:
        return None
    return (
        "the store ignores the condition of a write (If-None-Match), so that two attempts of a run at the same time "
        "cannot be kept apart: see to it that there is only one, or take another store"
    )


def _nothing(value: object) -> None:
    """For steps whose result does not matter."""


def _read_back(store: Store, name: str) -> None:
    found = store.read(name)
    if found != CONTENT:
        raise StorageError(f"storage: {store.uri}/{name} holds {len(found)} other bytes than were written")


def _clause(error: StorageError) -> str:
    cause = error.__cause__
    return explain(cause) if isinstance(cause, (aws.ClientError, aws.BotoCoreError)) else str(error)


def _identity() -> str:
    """Who asks: the access key id, shortened, and where it was found; never the secret."""
    profile = f" of profile {os.environ['AWS_PROFILE']!r}" if "AWS_PROFILE" in os.environ else ""
    try:
        credentials: Any = new_session().get_credentials()
        if credentials is None:
            return "no identity"
        key = credentials.get_frozen_credentials().access_key or ""
    except (aws.BotoCoreError, aws.ClientError) as error:
        return f"identity not obtained ({code_of(error) or type(error).__name__})"
    return f"identity {short_key(key)} from {credentials.method}{profile}"


def short_key(key: str) -> str:
    """`AKIA…WXYZ` of an access key id, less of a short one."""
    return f"{key[:4]}…{key[-4:]}" if len(key) >= 12 else f"{key[:2]}…"
