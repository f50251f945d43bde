"""The Pareto front and the importance of knobs."""

import random
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shardtune.tuner.insights.importance import FASTEST, FEWEST_TRIALS, Row, importance
from shardtune.tuner.insights.pareto import front
from shardtune.tuner.search.space.legal_values import Flat


def rows(count: int, speed: Callable[[Flat, random.Random], float], seed: int = 0) -> tuple[Row, ...]:
    """Trials drawn at random, with a knob that only one backend has."""
    rng = random.Random(seed)
    actual = []
    for _ in range(count):
        table: Flat = {"backend": rng.choice(["ddp", "zero"]), "micro_batch": rng.choice([1, 2, 4, 8])}
        table["compile"] = False
        table |= (
            {"stage": rng.choice([1, 2, 3])} if table["backend"] == "zero" else {"static_graph": rng.random() < 0.5}
        )
        actual.append((tuple(table.items()), speed(table, rng)))
    return tuple(actual)


def by_batch(table: Flat, rng: random.Random) -> float:
    return 100.0 * float(table["micro_batch"]) + rng.random()


def by_stage(table: Flat, rng: random.Random) -> float:
    return 100.0 * (float(table["stage"]) if table["backend"] == "zero" else 1.5) + rng.random()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_front_is_what_no_trial_beats_in_both(trials):
    def beats(first, other):
        return first[0] <= other[0] and first[1] >= other[1] and first != other

    actual_front = front(trials, lambda trial: trial[0], lambda trial: trial[1])
    assert actual_front == sorted({trial for trial in trials if not any(beats(other, trial) for other in trials)})


def test_the_knob_that_decides_comes_first_and_the_rest_could_be_chance():
    actual_importance = importance(rows(40, by_batch))
    assert actual_importance.knobs[0].knob == "micro_batch" and actual_importance.knobs[0].is_above_chance
    assert actual_importance.knobs[0].importance > 0.5 and sum(
        k.importance for k in actual_importance.knobs
    ) == pytest.approx(1)
    assert not any(k.is_above_chance for k in actual_importance.knobs[1:])
    assert "compile" not in {k.knob for k in actual_importance.knobs}, "it had one value"
    assert (actual_importance.trials, actual_importance.fastest) == (40, 10)


def test_a_knob_of_one_backend_counts_where_it_is():
    actual = {k.knob: k for k in importance(rows(60, by_stage)).knobs}
    assert actual["stage"].is_above_chance and actual["stage"].trials < 60
    assert actual["stage"].importance > actual["static_graph"].importance


def test_noise_is_seldom_told_as_more_than_chance():
    actual = [k for seed in range(8) for k in importance(rows(30, lambda _, rng: rng.random(), seed)).knobs]
    assert sum(k.is_above_chance for k in actual) <= 0.2 * len(actual)


def test_too_few_trials_and_equal_ones_get_a_reason_instead_of_a_number():
    few = importance(rows(FEWEST_TRIALS - 1, by_batch))
    assert few.knobs == () and few.reason is not None and f"{FEWEST_TRIALS} are needed" in few.reason
    assert importance(rows(FEWEST_TRIALS, by_batch)).fastest == FASTEST
    alike = importance(tuple(((("micro_batch", 1),), float(n)) for n in range(20)))
    assert alike.knobs == () and alike.reason is not None and "the same knobs" in alike.reason
