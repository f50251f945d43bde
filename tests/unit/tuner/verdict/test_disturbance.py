"""Runs that are discarded, and how often each is repeated."""

import pytest

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.tuner.verdict import disturbance
from tests.support.values.tuner_inputs import cpu, measured

GPUS = Cluster(device="cuda", gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=512)


def measurement_with(foreign=None, spread=0.01):
    run = measured(100.0)
    return run.model_copy(
        update={
            "step_time_half_width_s": spread * run.step_time_s,
            "conditions": Conditions(foreign_cpu_cores=foreign),
        }
    )


@pytest.mark.parametrize(
    ("foreign", "cores", "says"),
    [(0.2, 2, None), (0.9, 2, "0.9 of 2 cores"), (0.9, 64, None), (0.9, None, None), (None, 2, None)],
)
def test_other_programs_disturb_ranks_on_cpu_by_their_share_of_the_cores(foreign, cores, says):
    reason = disturbance.reason(measurement_with(foreign), cpu(), lambda: cores)
    assert reason is None if says is None else says in reason


def test_programs_on_cores_that_ranks_on_gpus_leave_free_disturb_nothing():
    assert disturbance.reason(measurement_with(40.0), GPUS, lambda: 64) is None
    assert "60.0 of 64" in disturbance.reason(measurement_with(60.0), GPUS, lambda: 64)


def test_a_run_whose_own_windows_lie_apart_was_disturbed_where_nobody_saw_by_what():
    assert "±40%" in disturbance.reason(measurement_with(spread=0.4), cpu(), lambda: None)
    assert disturbance.reason(measurement_with(foreign=0.1, spread=0.4), cpu(), lambda: 2) is None


def test_runs_beside_others_of_ours_are_not_repeated_for_windows_that_lie_apart():
    run = measurement_with(spread=0.4)
    beside = run.model_copy(update={"conditions": Conditions(co_tenants=1)})
    assert disturbance.reason(beside, cpu(), lambda: None) is None
    # What keeps the cores of its own share busy is nothing that was planned.
    other = run.model_copy(update={"conditions": Conditions(co_tenants=1, foreign_cpu_cores=0.9)})
    assert "0.9 of 1 cores" in disturbance.reason(other, cpu(), lambda: 1)


def test_repeats_are_bounded_for_a_run_and_for_a_study():
    assert disturbance.may_repeat(0.5, 0, study_repeats=0, complete_runs=0, discarded_in_a_row=0)
    assert not disturbance.may_repeat(0.5, disturbance.MAX_REPEATS, 5, complete_runs=90, discarded_in_a_row=0)
    most = disturbance.FREE_REPEATS + 10
    assert not disturbance.may_repeat(0.5, 0, study_repeats=most, complete_runs=20, discarded_in_a_row=0)
    assert not disturbance.may_repeat(0.0, 0, study_repeats=0, complete_runs=90, discarded_in_a_row=0)


def test_nothing_is_repeated_under_a_load_that_stays():
    in_a_row = disturbance.MAX_DISCARDED_IN_A_ROW
    assert disturbance.may_repeat(0.5, 0, study_repeats=in_a_row, complete_runs=90, discarded_in_a_row=in_a_row - 1)
    assert not disturbance.may_repeat(0.5, 0, study_repeats=in_a_row, complete_runs=90, discarded_in_a_row=in_a_row)
