"""The record of this project's own trials: resumed where it ended, and scored by configuration."""

from benchmarks.own_trials.cases import remaining
from benchmarks.own_trials.scores import by_config

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
