"""Difference of two recipes' losses: its interval holds, and a recipe that trains worse is told apart."""

import random

import pytest

from shardtune.api_schemas.studies.recipes import LossVerdict
from shardtune.tuner.verdict import loss_difference

BOUND = 0.02


def losses(seed: int, steps: int = 200, lag: float = 0.0, own_noise: float = 0.0, memory: float = 0.8) -> list[float]:
    """Falling losses whose noise by batch is common to all recipes; `lag`: loss by which this one trains worse in the end;
    `own_noise`: deviation of its own random walk, which returns to zero as weights of one optimum do."""
    batches, own, walk, values = random.Random(seed), random.Random(f"own {seed} {lag}"), 0.0, []
    for step in range(steps):
        walk = memory * walk + own.gauss(0, own_noise)
        shared = 3 + 4 * 0.98**step + batches.gauss(0, 0.1)
        values.append(shared + walk + lag * min(1.0, 2 * step / steps))
    return values


def test_the_noise_of_batches_does_not_count_because_both_train_on_the_same() -> None:
    compared = loss_difference.compare(losses(1, lag=0.05), losses(1), BOUND)
    assert compared.difference == pytest.approx(0.05, abs=2e-3) and compared.compared_steps == 100
    assert compared.interval[1] - compared.interval[0] < 2e-3 and compared.verdict is LossVerdict.WORSE
    assert compared.loss - compared.stated_loss == pytest.approx(compared.difference)


@pytest.mark.parametrize(("memory", "fewest"), [(0.0, 0.93), (0.8, 0.9)])
def test_the_interval_contains_the_difference(memory: float, fewest: float) -> None:
    """Differences of neighbouring steps depend on each other, which the interval of single steps would not allow for."""
    runs, inside = 400, 0
    for seed in range(runs):
        other = losses(seed, own_noise=0.01, memory=memory)
        low, high = loss_difference.compare(other, losses(seed), BOUND).interval
        inside += low <= 0 <= high
    assert inside >= fewest * runs, inside / runs


@pytest.mark.parametrize(("lag", "verdict"), [(0.1, LossVerdict.WORSE), (0.0, LossVerdict.AS_WELL)])
def test_a_recipe_that_trains_badly_is_told_from_a_healthy_one_in_nine_of_ten_runs(lag: float, verdict: str) -> None:
    told = [loss_difference.compare(losses(seed, lag=lag, own_noise=0.01), losses(seed), BOUND) for seed in range(100)]
    assert sum(compared.verdict is verdict for compared in told) >= 90


def test_an_interval_that_contains_the_bound_decides_nothing() -> None:
    compared = loss_difference.compare(losses(3, lag=BOUND, own_noise=0.05), losses(3), BOUND)
    assert compared.interval[0] < BOUND < compared.interval[1] and compared.verdict is LossVerdict.UNDECIDED


def test_the_losses_of_the_shorter_run_set_the_steps_and_too_few_are_an_error() -> None:
    assert loss_difference.compare(losses(1, steps=40), losses(1, steps=60), BOUND).steps == 40
    with pytest.raises(ValueError, match="19 steps are too few to compare losses; 20 are needed"):
        loss_difference.compare(losses(1, steps=19), losses(1), BOUND)
