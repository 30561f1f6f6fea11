"""Guarantees 1 to 5 over any row count, worker count, batch size, accumulation and number of epochs, for both engines.

Pure functions only: what the plan, both engines' dealing and the schedule are made of. tests/gloo has them in training.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import schedule
from pipeline.config import Config
from pipeline.data.engine import Index, total_steps, train_plan, validation_plan
from pipeline.data.plan import FILL, Plan
from pipeline.data.ray_engine import rounds
from pipeline.data.torch_engine import SlotSampler


@dataclass(frozen=True)
class Job:
    """Numbers of a job; `plan` and `validation` are as both engines make them."""

    rows: int
    workers: int
    batch: int
    accumulation: int
    epochs: int
    global_rows: int | None
    seed: int
    shuffle_rows: int
    bucket_batches: int

    @property
    def config(self) -> Config:
        training = {
            "batch_size_per_worker": self.batch, "gradient_accumulation_steps": self.accumulation,
            "epochs": self.epochs, "global_batch_size": self.global_rows,
        }  # fmt: skip
        data = {"shuffle_rows": self.shuffle_rows, "bucket_batches": self.bucket_batches}
        scaling = {"workers": self.workers}
        return Config.model_validate(
            {"training": training, "data": data, "scaling": scaling, "run": {"seed": self.seed}}
        )

    @property
    def index(self) -> Index:
        rng = np.random.default_rng(self.rows)
        weights = rng.choice(np.array([0.5, 1, 3], np.float32), self.rows)
        return Index(rng.integers(2, 40, self.rows).astype(np.int32), weights, 0)

    @property
    def plan(self) -> Plan:
        return train_plan(self.config, self.index, self.workers)

    @property
    def validation(self) -> Plan:
        plan = validation_plan(self.config, self.index, self.workers)
        assert plan is not None
        return plan


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    workers = draw(st.integers(1, 5))
    return Job(
        rows=draw(st.integers(1, 160)),
        workers=workers,
        batch=draw(st.integers(1, 9)),
        accumulation=draw(st.integers(1, 8)),
        epochs=draw(st.integers(1, 3)),
        global_rows=draw(st.none() | st.integers(workers, 48)),
        seed=draw(st.integers(0, 5)),
        shuffle_rows=draw(st.sampled_from([16, 64, 262_144])),
        bucket_batches=draw(st.sampled_from([1, 3, 50])),
    )


def torch_batches(plan: Plan, first: int, last: int) -> list[list[list[int]]]:
    """Micro-batches of each rank, dealt as Accelerate's BatchSamplerShard does: batch i to process i % workers."""
    sampler = SlotSampler(plan)
    sampler.steps = range(first, last)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return [batches[rank :: plan.shape.workers] for rank in range(plan.shape.workers)]


def ray_batches(plan: Plan, first: int, last: int) -> list[list[list[int]]]:
    """Micro-batches of each rank, cut from its blocks as `iter_torch_batches` cuts them."""
    size, dealt = plan.shape.micro_rows, []
    for rank in range(plan.shape.workers):
        blocks = [range(*part) for part in rounds(plan, first, last)]
        rows = [int(row) for block in blocks for step in block for row in plan.rank_rows(step, rank)]
        dealt.append([rows[start : start + size] for start in range(0, len(rows), size)])
    return dealt


def used(batches: list[list[list[int]]]) -> list[int]:
    return sorted(row for rank in batches for batch in rank for row in batch if row != FILL)


@given(jobs())
def test_1_every_training_row_is_used_once_an_epoch_and_every_validation_row_counted_once(job: Job) -> None:
    plan, steps = job.plan, total_steps(job.config, job.plan)
    for dealt in (torch_batches, ray_batches):
        assert used(dealt(plan, 0, steps)) == sorted([*range(job.rows)] * job.epochs)
        for epoch in range(job.epochs):
            first = epoch * plan.steps_per_epoch
            assert used(dealt(plan, first, first + plan.steps_per_epoch)) == [*range(job.rows)]
        validation = job.validation
        assert used(dealt(validation, 0, validation.steps_per_epoch)) == [*range(job.rows)]


@given(jobs())
def test_2_all_ranks_take_the_same_steps_in_batches_of_one_size(job: Job) -> None:
    for plan, last in ((job.plan, total_steps(job.config, job.plan)), (job.validation, job.validation.steps_per_epoch)):
        by_torch, by_ray = torch_batches(plan, 0, last), ray_batches(plan, 0, last)
        assert by_torch == by_ray
        assert {len(rank) for rank in by_torch} == {sum(plan.step(step).micro_batches for step in range(last))}
        assert {len(batch) for rank in by_torch for batch in rank} == {plan.shape.micro_rows}


@given(jobs(), st.data())
def test_3_the_order_follows_from_seed_and_epoch_and_a_resumed_run_goes_on(job: Job, data: st.DataObject) -> None:
    plan, steps = job.plan, total_steps(job.config, job.plan)
    resumed = data.draw(st.integers(0, steps - 1), "step")
    for dealt in (torch_batches, ray_batches):
        before, after, whole = dealt(plan, 0, resumed), dealt(plan, resumed, steps), dealt(plan, 0, steps)
        assert [first + rest for first, rest in zip(before, after, strict=True)] == whole
    others = data.draw(st.integers(1, 6), "other workers")
    if job.global_rows is not None and others <= job.global_rows:
        other = Job(**{**job.__dict__, "workers": others}).plan
        assert other.steps_per_epoch == plan.steps_per_epoch
        for step in range(steps):
            assert np.array_equal(other.step_rows(step), plan.step_rows(step))
    if job.rows > 20:
        again = Job(**{**job.__dict__, "seed": job.seed + 1}).plan
        assert not np.array_equal(plan.order(0), plan.order(1))
        assert not np.array_equal(plan.order(0), again.order(0))


def rates(total: int, warmup: float, kind: Any, first: int = 0) -> list[float]:
    """The rate of each step from `first` on, and what is left after the last."""
    group = {"params": [torch.nn.Parameter(torch.zeros(1))], "initial_lr": 2.0}  # as a checkpoint has it
    optimizer = torch.optim.SGD([group], lr=2.0)
    scheduler = schedule.build(optimizer, total, warmup, kind, first)
    found = []
    for _ in range(first, total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return [*found, optimizer.param_groups[0]["lr"]]


@settings(max_examples=40)
@given(jobs(), st.floats(0, 0.9), st.sampled_from(["linear", "cosine", "constant"]), st.data())
def test_4_the_schedule_is_in_optimizer_steps_and_ends_at_the_last_one(
    job: Job, warmup: float, kind: str, data: st.DataObject
) -> None:
    steps = total_steps(job.config, job.plan)
    assert steps == job.epochs * -(-job.rows // job.plan.shape.global_rows)
    found = rates(steps, warmup, kind)
    assert min(found[:-1]) > 0
    assert max(found) <= 2.0
    assert found[-1] == pytest.approx(2.0 if kind == "constant" else 0.0, abs=1e-9)
    resumed = data.draw(st.integers(0, steps - 1), "step")
    assert rates(steps, warmup, kind, resumed) == pytest.approx(found[resumed:])
    short = job.plan.step(job.plan.steps_per_epoch - 1)
    rest = job.rows - (job.plan.steps_per_epoch - 1) * job.plan.shape.global_rows
    assert len(short.rows) == rest
    assert short.micro_batches <= job.plan.shape.accumulation
    assert short.micro_batches == -(-rest // (job.plan.shape.workers * job.plan.shape.micro_rows))


@given(jobs())
def test_5_a_steps_loss_is_the_weighted_mean_of_its_rows_however_they_are_spread(job: Job) -> None:
    plan, index = job.plan, job.index
    values = np.random.default_rng(1).normal(size=job.rows)
    for step in range(plan.steps_per_epoch):
        weight = plan.step(step).weight
        shares = 0.0
        for rank in torch_batches(plan, step, step + 1):
            for batch in rank:
                rows = [row for row in batch if row != FILL]
                shares += float((values[rows] * index.weights[rows]).sum() / weight)
        expected = np.average(values[plan.step_rows(step)], weights=index.weights[plan.step_rows(step)])
        assert shares == pytest.approx(expected, rel=1e-9, abs=1e-12)
