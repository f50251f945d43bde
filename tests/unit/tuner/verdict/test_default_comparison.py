"""The answer stands beside each documented default, once."""

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.tuner.verdict.contenders import compare_with_defaults, contender
from tests.support.values.tuner_inputs import complete

DDP, ZERO = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=ZeroConfig(stage=2))
BEST = complete(2, TrialConfig(strategy=DdpConfig(bucket_cap_mb=50)), 300)
HISTORY = (complete(0, DDP, 200, "default"), complete(1, ZERO, 100, "default"), BEST)


def shown(history, paired):
    return [row.trial_number for row in compare_with_defaults(contender(BEST), history, paired)]


def test_the_default_that_the_answer_was_paired_with_has_one_figure_that_of_the_pairs():
    assert shown(HISTORY, paired=0) == [1]
    assert shown(HISTORY, paired=None) == [0, 1]


def test_a_default_that_is_faster_with_another_micro_batch_stands_there_still():
    larger = complete(3, DDP.model_copy(update={"micro_batch": 4}), 250)
    assert shown((*HISTORY, larger), paired=0) == [3, 1]
