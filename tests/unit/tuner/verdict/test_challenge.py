"""Choice of challengers, early end of a challenge, and that an early end never names a winner."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.verdict import challenge, paired_test
from tests.support.values.tuner_inputs import complete

UP, DOWN, LEVEL = math.log(1.1), math.log(0.95), math.log(1.001)
DDP = TrialConfig(strategy=DdpConfig())
DDP_4 = TrialConfig(strategy=DdpConfig(), micro_batch=4)
DDP_8 = TrialConfig(strategy=DdpConfig(), micro_batch=8)
ZERO = TrialConfig(strategy=ZeroConfig(stage=2))
FSDP = TrialConfig(strategy=Fsdp2Config(dp_shard=2))


def ended(signs, first=UP):
    """Pairs that a challenge takes for these outcomes, and its finding."""
    for count in range(1, challenge.MAX_PAIRS + 1):
        decided = challenge.decide(signs[:count], challenge.MAX_PAIRS, first)
        if decided != "open":
            return count, decided
    raise AssertionError("a challenge ends")


@pytest.mark.parametrize(
    ("ratios", "count", "finding"),
    [
        ([DOWN] * 13, 2, "kept"),
        ([LEVEL, DOWN] * 7, 4, "kept"),
        ([UP, DOWN, DOWN, LEVEL] + [UP] * 10, 4, "kept"),
        ([UP] * 13, 7, "faster"),
        ([UP, DOWN] + [UP] * 11, 10, "faster"),
        ([UP, UP, UP, DOWN, DOWN] + [UP] * 8, 13, "faster"),
        ([UP, UP, UP, DOWN, DOWN, UP, DOWN] + [UP] * 6, 7, "inconclusive"),
    ],
)
def test_a_challenge_ends_when_it_knows_or_when_going_on_is_futile(ratios, count, finding):
    assert ended(ratios)[0] == count
    assert challenge.outcome(ratios[:count], challenge.MAX_PAIRS, UP) == finding


def test_giving_up_never_raises_the_error():
    """Enumeration of all sequences of 13 fair coins: whoever wins a challenge would have won without the futility
    rule."""
    coins = list(product((UP, DOWN), repeat=challenge.MAX_PAIRS))
    won = [signs for signs in coins if ended(signs)[1] == "faster"]
    assert all(any(paired_test.decide(w[:n], 13) == "faster" for n in range(1, 14)) for w in won)
    assert len(won) / len(coins) <= paired_test.ERROR


def test_the_runs_that_made_the_rival_count_towards_giving_up_but_not_towards_a_win():
    assert ended([DOWN] * 13, first=DOWN)[0] == 1
    assert ended([UP] * 13, first=DOWN) == (7, "faster")
    assert ended([UP, DOWN] + [UP] * 11, first=UP) == (10, "faster")
    history = [complete(0, DDP, 1000.0), complete(1, ZERO, 950.0)]
    assert challenge.search_log_ratio(history, 0, 1) == pytest.approx(math.log(0.95))


def test_too_few_pairs_keep_nothing():
    assert challenge.outcome([], challenge.MAX_PAIRS, None) == "inconclusive"
    assert challenge.outcome([], challenge.MAX_PAIRS, UP) == "inconclusive"
    assert challenge.outcome([UP], challenge.MAX_PAIRS, UP) == "inconclusive"


def test_pairs_that_were_mostly_disturbed_keep_nothing():
    assert challenge.outcome([DOWN, DOWN], challenge.MAX_PAIRS, DOWN, disturbed_pairs=0) == "kept"
    assert challenge.outcome([DOWN, DOWN], challenge.MAX_PAIRS, DOWN, disturbed_pairs=1) == "inconclusive"


def test_search_runs_of_which_one_was_disturbed_do_not_count_towards_giving_up():
    incumbent, rival = complete(0, DDP, 1000.0), complete(1, ZERO, 550.0)
    assert rival.measurement is not None
    disturbed = replace(rival, measurement=rival.measurement.model_copy(update={"disturbed": "other programs"}))
    assert challenge.search_log_ratio([incumbent, disturbed], 0, 1) is None
    assert ended([DOWN] * 13, first=None)[0] == 2


def test_the_rival_is_the_fastest_challenger_however_slow_its_search_run_was():
    assert challenge.finalists_with_rival(Finalists(0, (1, 2))).candidates == (1,)
    assert challenge.finalists_with_rival(Finalists(0, ())).candidates == ()


def test_runner_ups_are_the_fastest_and_then_the_fastest_of_each_other_backend():
    history = [
        complete(0, DDP, 1000.0),
        complete(1, DDP_4, 990.0),
        complete(2, DDP_8, 980.0),
        complete(3, ZERO, 700.0),
        replace(complete(4, FSDP, 5000.0), state=TrialState.INFEASIBLE),
    ]
    assert challenge.runner_ups(history, DDP) == (DDP_4, ZERO, DDP_8)
    assert challenge.runner_ups(history[:3], DDP) == (DDP_4, DDP_8)
    assert challenge.runner_ups(history[:1], DDP) == ()


def speeds(table):
    return lambda configs: np.array([table.get(config, 0.0) for config in configs])


def test_favourites_follow_what_the_predictor_says_has_changed():
    history = [complete(0, DDP, 1000.0), complete(1, ZERO, 800.0)]
    then, now = {DDP: 500.0, ZERO: 500.0, FSDP: 400.0}, {DDP: 500.0, ZERO: 700.0, FSDP: 400.0}
    assert challenge.favourites([FSDP], history, DDP, speeds(then), speeds(then)) == ()
    assert challenge.favourites([FSDP], history, DDP, speeds(then), speeds(now)) == (ZERO,)
    # Predicted at 700 where those measured ran 1.8 times (1000 / 500 and 800 / 500) as fast as predicted.
    faster = now | {FSDP: 700.0}
    assert challenge.favourites([FSDP], history, DDP, speeds(then), speeds(faster)) == (FSDP, ZERO)
    assert challenge.favourites([FSDP], history, DDP, lambda _: None, speeds(now)) == ()


def test_at_most_three_challenge_and_never_the_incumbent():
    assert challenge.challengers(FSDP, (DDP_4, ZERO), (DDP_8,), DDP) == (FSDP, DDP_4, ZERO)
    assert challenge.challengers(None, (DDP_4, ZERO, DDP_8), (FSDP,), DDP) == (DDP_4, ZERO, FSDP)
    assert challenge.challengers(DDP, (DDP, DDP_4, ZERO, DDP_8), (), DDP) == (DDP_4, ZERO, DDP_8)
