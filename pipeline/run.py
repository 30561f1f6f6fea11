"""The folder of a run in storage: who writes it, what it was started with, whether it may go on.

A driver writes its mark into `owner.json` when it starts; each start of a group of workers claims the next number under
`attempts/`, which only one can create. Before anything that a newer attempt could have written too, the owner is looked
up again, and `result.json` is replaced only if it is still the one seen, so that a driver that was stopped and goes on
later finds itself superseded instead of overwriting what came after it.
"""

import json
import platform
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pipeline import checkpoint, records, settings, tracking
from pipeline.config import Config
from pipeline.data.engine import train_shape
from pipeline.data.inspect import Facts
from pipeline.errors import Superseded, UserError
from pipeline.records import CONFIG, DATA, OWNER, RESULT
from pipeline.storage import Conflict, Store, open_store

# What may change when a run goes on: section.field, or a whole section. Batch and workers are compared as one number.
MAY_CHANGE = {
    "training.epochs",
    "training.max_steps",
    "training.log_every",
    "training.eval_batch_size_per_worker",
    "training.batch_size_per_worker",
    "training.global_batch_size",
    "training.gradient_accumulation_steps",
    "run.max_failures",
    "run.stall_timeout_s",
    "run.collective_timeout_s",
    "training.stop_on_bad_loss",
    "checkpoint",
    "storage",
    "scaling",
}


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class RunFolder:
    """A run's folder as one driver, and the workers that it starts, see it."""

    store: Store
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, config: Config, owner: str | None = None) -> "RunFolder":
        """The folder of `run.name` under `storage.path`; a worker gives the mark of its driver."""
        store = open_store(config.storage).child(config.run.name)
        return cls(store) if owner is None else cls(store, owner)

    def take_over(self, config: Config, facts: Facts) -> None:
        """Make this driver the one that writes, and record what it was started with."""
        mark = {"owner": self.owner, "started": now(), "host": platform.node()}
        self.store.write(OWNER, json.dumps(mark).encode())
        self.store.write(CONFIG, settings.dump(config).encode())
        self.store.write(DATA, json.dumps(facts.to_json(), indent=1).encode())

    def check_owner(self) -> None:
        """
        Raises:
            Superseded: a newer driver has taken this run over.
        """
        found = records.owner(self.store)
        if found is None or found["owner"] != self.owner:
            raise Superseded(f"a newer attempt has taken over {self.store.uri}; this one stops without writing more")

    def claim_attempt(self, world_size: int) -> int:
        """The next attempt number, claimed for this driver; called once for each group of workers."""
        self.check_owner()
        while True:
            attempt = self.attempts() + 1
            mark = {"attempt": attempt, "owner": self.owner, "started": now(), "world_size": world_size}
            try:
                self.store.write(f"attempts/{attempt:03d}.json", json.dumps(mark).encode(), if_absent=True)
            except Conflict:
                continue
            return attempt

    def attempts(self) -> int:
        """The newest attempt's number, 0 if there was none.

        Also by what an attempt left, should its own file be lost: a number given twice would write over the lines of
        the first, and checkpoints of a lower number are older ones.
        """
        saved = (name.attempt for folder in self.store.folders() if (name := checkpoint.Name.parse(folder)))
        return max([*records.attempts(self.store), *saved, *tracking.attempts(self.store)], default=0)

    def result(self) -> tuple[dict[str, Any] | None, str | None]:
        """`result.json` and its tag, or None and None. Raises UserError if it is damaged."""
        return records.result(self.store) or (None, None)

    def write_result(self, result: dict[str, Any], seen: str | None) -> None:
        """Replace `result.json` if it is still the one with the tag `seen`, or still absent.

        Raises:
            Superseded: somebody else wrote it.
        """
        self.check_owner()
        data = json.dumps(result, indent=1).encode()
        try:
            if seen is None:
                self.store.write(RESULT, data, if_absent=True)
            else:
                self.store.write(RESULT, data, if_tag=seen)
        except Conflict as error:
            raise Superseded(f"{self.store.uri}/{RESULT} was written by another attempt meanwhile") from error

    def started_with(self) -> tuple[dict[str, Any], Facts] | None:
        """Configuration and data of the newest start, or None for a new run.

        Raises:
            UserError: one is damaged, or is gone though the run has gone on from there.
        """
        config, facts = records.configuration(self.store), records.facts(self.store)
        if config is None or facts is None:
            missing = [name for name, found in ((CONFIG, config), (DATA, facts)) if found is None]
            if left := self._left_behind():
                raise UserError(
                    f"{self.store.uri}: is damaged: has {' and '.join(left)}, but no {' and no '.join(missing)}; "
                    "restore what is missing, or take another run.name"
                )
            return None
        return config.model_dump(mode="json"), facts

    def _left_behind(self) -> list[str]:
        """What only a run has that was once started; a start that ended between its first writes left none of it."""
        names = map(checkpoint.Name.parse, self.store.folders())
        kept = {
            RESULT: self.store.exists(RESULT),
            "attempts": bool(records.attempts(self.store)),
            "checkpoints": any(names),
        }
        return [name for name, found in kept.items() if found]


def differences(before: dict[str, Any], facts_before: Facts, config: Config, facts: Facts) -> list[str]:
    """What differs between an existing run and a configuration that wants to continue it, but must not; a line each."""
    now_ = config.model_dump(mode="json")
    found = []
    for section, fields in now_.items():
        if section in MAY_CHANGE:
            continue
        old = before.get(section, {})
        for name, value in fields.items():
            path = f"{section}.{name}"
            if path not in MAY_CHANGE and path != "run.name" and old.get(name) != value:
                found.append(f"{path}: the run has {_short(old.get(name))}, the configuration {_short(value)}")
    rows_before = train_shape(Config.model_validate(before), before["scaling"]["workers"]).global_rows
    rows = train_shape(config, config.scaling.workers).global_rows
    if rows_before != rows:
        found.append(f"global batch: the run has {rows_before} rows, the configuration {rows}")
    for split in ("train", "validation"):
        if config.data.model_dump().get(split) == before.get("data", {}).get(split):
            olds, news = ([(file.size, file.tag) for file in f.files.get(split, [])] for f in (facts_before, facts))
            if olds != news:
                found.append(f"data.{split}: the files have changed since the run began (size or content)")
    if any(difference.startswith("strategy.") for difference in found):
        found.append(
            "strategy: it cannot change within a run; export the weights (pipeline runs export RUN DIR) and train on "
            "from them with model.path=DIR under another run.name"
        )
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
