"""The record of this project's own trials: resumed where it ended, and scored by configuration."""

from benchmarks.own_trials.cases import JOBS, draw, remaining
from benchmarks.own_trials.scores import by_config, evaluated
from tests.support.values.tuner_inputs import TINY

PLANNED = [{"job": "a", "strategy": "ddp", "config": str(number)} for number in range(6)]


def test_what_is_recorded_is_not_run_again_and_the_order_stays() -> None:
    everything = remaining(PLANNED, [], 2)
    assert len(everything) == 12
    assert remaining(PLANNED, everything[:4], 2) == everything[4:]


def test_each_round_runs_every_configuration_in_an_order_of_its_own() -> None:
    rounds = [[row["config"] for row in remaining(PLANNED, [], 2) if row["round"] == number] for number in "12"]
    assert sorted(rounds[0]) == sorted(rounds[1])
    assert rounds[0] != rounds[1]


def test_runs_of_one_configuration_come_together() -> None:
    rows = [{"config": config, "step_time_s": time} for config, time in (("x", "1"), ("y", "2"), ("x", "3"))]
    assert [[row["step_time_s"] for row in runs] for runs in by_config(rows).values()] == [["1", "3"], ["2"]]


def test_levers_are_drawn_on_each_backend_that_trains_them() -> None:
    """More than 60 configurations over levers, recipes and backends, each of which the predictor can read."""
    jobs = {name: job for name, job in JOBS.items() if "levers" in name}
    drawn = {name: list(draw(job, TINY)) for name, job in jobs.items()}
    configs = [config for rows in drawn.values() for _, config in rows]
    assert len(configs) >= 60 and {strategy for rows in drawn.values() for strategy, _ in rows} == {
        *("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
    }
    assert {config.loss for config in configs} == {"full", "chunked"}
    assert {config.mlp_slices for config in configs} == {1, 4, 16}
    assert {config.activation_offload for config in configs} == {False, True}
    for name, rows in drawn.items():
        assert {strategy for strategy, _ in rows} == set(jobs[name].strategies)
        assert (evaluated(jobs[name], [config for _, config in rows]).memory.allocated > 0).all()
