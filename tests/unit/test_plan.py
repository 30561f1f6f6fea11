"""The plan of batches: every row once an epoch, equal steps on all ranks, an order of seed and epoch alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.plan import FILL, Plan, Shape


def plan(rows: int, shape: Shape, seed: int | None = 0, **settings: int) -> Plan:
    lengths = np.random.default_rng(rows).integers(3, 60, rows).astype(np.int32)
    return Plan(lengths, np.ones(rows, np.float32), shape, seed, **settings)


shapes = st.builds(
    Shape.of,
    workers=st.integers(1, 5),
    per_worker=st.integers(1, 9),
    accumulation=st.integers(1, 4),
    global_rows=st.none() | st.integers(5, 40),
)


@given(rows=st.integers(1, 300), shape=shapes, epoch=st.integers(0, 3), buffer=st.sampled_from([64, 128, 262_144]))
def test_each_row_is_used_exactly_once_an_epoch_and_ranks_agree_on_steps(
    rows: int, shape: Shape, epoch: int, buffer: int
) -> None:
    made = plan(rows, shape, shuffle_rows=buffer, bucket_batches=3)
    steps = range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
    per_rank = [[made.rank_rows(step, rank) for step in steps] for rank in range(shape.workers)]
    sizes = [[len(part) for part in parts] for parts in per_rank]
    assert all(size == sizes[0] for size in sizes)
    assert all(size % made.shape.micro_rows == 0 for size in sizes[0])
    used = np.concatenate([part for parts in per_rank for part in parts])
    assert sorted(used[used != FILL]) == list(range(rows))


@given(rows=st.integers(1, 300), shape=shapes)
def test_a_step_divides_by_the_weight_of_exactly_its_rows(rows: int, shape: Shape) -> None:
    made = plan(rows, shape)
    for step in range(made.steps_per_epoch):
        facts = made.step(step)
        ranks = np.concatenate([made.rank_rows(step, rank) for rank in range(shape.workers)])
        assert facts.weight == len(ranks[ranks != FILL])
        assert facts.micro_batches * made.shape.micro_rows * shape.workers == len(ranks)
        assert facts.padded_tokens >= facts.tokens


@pytest.mark.parametrize("rows", [1000, 997])
def test_the_order_does_not_depend_on_the_worker_count(rows: int) -> None:
    plans = [plan(rows, Shape.of(workers, 32, 1, 24)) for workers in (1, 2, 3, 5)]
    for step in range(2 * plans[0].steps_per_epoch):
        expected = plans[0].step_rows(step)
        for other in plans[1:]:
            assert np.array_equal(other.step_rows(step), expected)


def test_the_order_differs_by_epoch_and_seed_and_repeats_for_the_same() -> None:
    shape = Shape.of(2, 8)
    first, again, other = plan(500, shape, 1), plan(500, shape, 1), plan(500, shape, 2)
    assert np.array_equal(first.order(0), again.order(0))
    assert not np.array_equal(first.order(0), first.order(1))
    assert not np.array_equal(first.order(0), other.order(0))


def test_a_global_batch_of_24_is_split_evenly_over_1_2_and_3_workers() -> None:
    assert [Shape.of(w, 32, 1, 24).micro_rows for w in (1, 2, 3)] == [24, 12, 8]
    accumulated = Shape.of(2, 4, 1, 24)
    assert (accumulated.micro_rows, accumulated.accumulation) == (4, 3)


def test_a_short_last_step_takes_only_the_micro_batches_it_needs() -> None:
    made = plan(5 * 2 * 4, Shape.of(2, 4, 4))
    assert [made.step(step).micro_batches for step in range(made.steps_per_epoch)] == [4, 1]


def test_rows_of_a_buffer_come_from_all_over_a_data_set_larger_than_it() -> None:
    made = plan(10_000, Shape.of(1, 10), shuffle_rows=1_000, bucket_batches=1)
    first = made.order(0)[:1_000]
    assert first.max() - first.min() > 8_000
    assert np.abs(np.diff(first)).mean() > 1_000


def test_bucketing_saves_padding_and_moves_no_row_further_than_its_window() -> None:
    shape, size = Shape.of(2, 16), 32
    bucketed, plain = plan(6_400, shape, bucket_batches=50), plan(6_400, shape, bucket_batches=1)
    waste = []
    for made in (bucketed, plain):
        steps = [made.step(step) for step in range(made.steps_per_epoch)]
        waste.append(1 - sum(step.tokens for step in steps) / sum(step.padded_tokens for step in steps))
    assert waste[0] < 0.1 < waste[1]
    place = np.empty(6_400, np.int64)
    place[bucketed.order(0)] = np.arange(6_400)
    before = np.empty(6_400, np.int64)
    before[plain.order(0)] = np.arange(6_400)
    assert np.array_equal(place // (50 * size), before // (50 * size))


def test_evaluation_keeps_one_order_and_counts_a_single_row_on_many_workers() -> None:
    made = plan(1, Shape.of(4, 8), seed=None)
    rows = np.concatenate([made.rank_rows(0, rank) for rank in range(4)])
    assert sorted(rows[rows != FILL]) == [0]
    assert made.steps_per_epoch == 1


def test_a_micro_batch_far_beyond_the_rows_holds_no_more_than_there_are() -> None:
    weights = np.ones(5, np.float32)
    plan = Plan(np.arange(1, 6, dtype=np.int32), weights, Shape.of(2, 2_147_483_647, accumulation=3), seed=1)
    assert (plan.shape.micro_rows, plan.steps_per_epoch) == (3, 1)
    assert sorted([*plan.rank_rows(0, 0), *plan.rank_rows(0, 1)]) == [FILL, 0, 1, 2, 3, 4]
