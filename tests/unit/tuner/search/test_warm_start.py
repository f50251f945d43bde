"""Trials of another study guide the sampler by their order; their figures are put at the level of the new ones."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.tuner.search import warm_start
from shardtune.tuner.search.suggest import next_config
from shardtune.tuner.search.warm_start import WarmStart
from tests.support.values.tuner_inputs import complete, cpu, open_gate, space_of

DDP = TrialConfig(strategy=DdpConfig())
DDP_4 = TrialConfig(strategy=DdpConfig(), micro_batch=4)
FSDP = TrialConfig(strategy=Fsdp2Config(dp_shard=2))


def speeds(observations):
    return {obs.config: obs.measurement.tokens_per_s_per_gpu for obs in observations}


def test_old_speeds_are_levelled_by_what_both_have_measured():
    old = WarmStart("old", "f", (complete(0, DDP, 100.0), complete(1, DDP_4, 200.0), complete(2, FSDP, 50.0)))
    assert warm_start.scaled_trials(old, []) == (), "nothing says yet how the two compare"
    levels = warm_start.scaled_trials(old, [complete(0, DDP, 300.0)])
    assert speeds(levels) == {DDP_4: pytest.approx(600.0), FSDP: pytest.approx(150.0)}
    assert warm_start.scaled_trials(None, [complete(0, DDP, 300.0)]) == ()


def test_a_warm_started_sampler_begins_near_fast_configurations_and_may_repeat_them():
    # Without the two backends that have a hundred times as many configurations.
    space = space_of(cpu(), SpaceLimits(backends=("ddp", "fsdp2")))
    everything = list(space.enumerate())
    fast = [config for config in everything if config.backend == "ddp" and config.micro_batch == 8]
    slow = [config for config in everything if config.backend == "fsdp2" and config.micro_batch == 1]
    old = [complete(n, config, 1000.0 + n) for n, config in enumerate(fast[:10])]
    old += [complete(20 + n, config, 100.0 + n) for n, config in enumerate(slow[:30])]
    new = [complete(0, DDP, 400.0)]

    def chosen(warm):
        return [next_config(space, (), new, (), open_gate, seed, warm).config for seed in range(12)]

    assert sum(config.backend == "ddp" for config in chosen(old)) >= 10
    assert sum(config.backend == "ddp" for config in chosen(())) <= 6
