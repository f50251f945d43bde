"""Starting configurations: the user's baseline, and of the defaults those that a baseline needs."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.search.seeds import due_seeds, node_aligned, seed_configs
from tests.support.values.tuner_inputs import complete, cpu, space_of

SPEEDS = {"ddp": 100.0, "zero": 80.0, "fsdp2": 60.0, "fsdp1": 60.0}
USERS = TrialConfig(strategy=DdpConfig(bucket_cap_mb=3), micro_batch=2)


def forecast(width):
    return lambda configs: [(SPEEDS[config.backend], SPEEDS[config.backend] * width) for config in configs]


def due(history, width=1.1, baseline=None, predicted=True):
    seeds = seed_configs(space_of(cpu()), cpu(), baseline)
    new_seeds = due_seeds(seeds, history, (), forecast(width) if predicted else lambda configs: None)
    return [(config.backend, origin) for config, origin in new_seeds if config not in [obs.config for obs in history]]


def ran(width=1.1, speed=100.0):
    """One default after the other, each at this speed."""
    history = []
    while remaining := [
        due_config for due_config in due_configs(history, width) if due_config not in [obs.config for obs in history]
    ]:
        history.append(complete(len(history), remaining[0], speed if not history else 50.0, origin=TrialOrigin.DEFAULT))
    return history


def due_configs(history, width):
    return [config for config, _ in due_seeds(seed_configs(space_of(cpu()), cpu(), None), history, (), forecast(width))]


def test_the_fastest_default_by_prediction_runs_and_one_of_another_backend():
    assert due([]) == [("ddp", TrialOrigin.DEFAULT), ("zero", TrialOrigin.DEFAULT)]
    assert [obs.config.backend for obs in ran()] == ["ddp", "zero"]


def test_a_default_whose_interval_reaches_the_fastest_measured_one_runs_too():
    assert [obs.config.backend for obs in ran(width=1.3)] == ["ddp", "zero", "zero"]
    assert len(ran(width=2.0)) == 4


def test_with_a_baseline_of_the_user_s_one_default_of_another_backend_runs():
    assert due([], baseline=USERS) == [("ddp", TrialOrigin.BASELINE), ("zero", TrialOrigin.DEFAULT)]
    history = [complete(0, USERS, 90.0, origin=TrialOrigin.BASELINE)]
    assert due(history, baseline=USERS) == [("zero", TrialOrigin.DEFAULT)]
    history.append(complete(1, due_configs([], 1.1)[1], 80.0))
    assert due(history, baseline=USERS) == []


def test_where_the_first_ones_do_not_run_the_next_do():
    first, second = due_configs([], 1.1)
    failed = [
        Observation(i, item, TrialOrigin.DEFAULT, TrialState.INFEASIBLE) for i, item in enumerate((first, second))
    ]
    assert len(due(failed)) == 2


def test_where_nothing_can_be_predicted_all_run():
    assert len(due([], predicted=False)) == 4


def test_what_is_predicted_not_to_fit_comes_last():
    def nothing_fits_but_fsdp(configs):
        return [(60.0, 66.0) if config.backend == "fsdp2" else (0.0, 0.0) for config in configs]

    seeds = seed_configs(space_of(cpu()), cpu(), None)
    assert due_seeds(seeds, [], (), nothing_fits_but_fsdp)[0][0].backend == "fsdp2"


@pytest.mark.parametrize("baseline", [None, USERS])
def test_over_several_nodes_the_mesh_that_follows_them_runs_first_whatever_is_predicted(baseline):
    cluster = cpu(4).model_copy(update={"nodes": 2})
    seeds = seed_configs(space_of(cluster), cluster, baseline)
    new_seeds = due_seeds(
        seeds, (), (), lambda configs: [(900.0, 990.0) if c.backend == "ddp" else (1.0, 1.1) for c in configs]
    )
    first = next(config for config, origin in new_seeds if origin is TrialOrigin.DEFAULT).strategy
    assert isinstance(first, Fsdp2Config) and (first.dp_replicate, first.dp_shard) == (2, 4)
    assert len({config.backend for config, _ in new_seeds}) > 1, "and two backends train the same thing"
    assert node_aligned(cpu(4)) == []
