"""A small version of `benchmarks.study_cost`: a whole study in virtual time by the service's planner."""

import math
from dataclasses import replace

import pytest

from benchmarks.study_cost import report
from benchmarks.study_cost.cases import CASES, Case
from benchmarks.study_cost.machine import Machine
from benchmarks.study_cost.truth import Errors, Truth
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.short_steps import ShortSteps

DDP = TrialConfig(strategy=DdpConfig())
EXACT = Errors(level=0.0, backend=0.0, knobs=0.0, peak=0.0, extension=0.0)


def truth_of(case: Case, errors: Errors, seed: str = "a") -> Truth:
    return Truth(case.pool, 4.0, seed, errors, case.spec.workload.global_batch, case.cluster.world_size)


def machine_of(case: Case, errors: Errors, noise: float = 0.01) -> Machine:
    return Machine(truth_of(case, errors), case.spec.workload, case.cluster, case.overheads, noise, "a")


@pytest.fixture(scope="module")
def example() -> Case:
    return CASES["llama-tiny-2-cpu"]()


def test_every_gpu_second_of_a_study_is_counted_once_by_phase_and_once_by_activity(example: Case) -> None:
    (outcome,) = report.simulate(example, 0.01, 1)
    spending = outcome.study.spending
    assert sum(spending.by_phase.values()) == pytest.approx(sum(spending.by_activity.values()))
    assert outcome.study.result is not None and set(spending.runs) == {
        "model summary",
        "search",
        "final comparison",
        "resume check",
    }


def test_a_predictor_without_errors_finds_the_best_configuration(example: Case) -> None:
    (outcome,) = report.simulate(replace(example, errors=EXACT), 0.002, 1)
    assert outcome.share_of_best >= report.RIGHT and not outcome.is_false_winner


def test_the_same_seed_has_the_same_truth(example: Case) -> None:
    first, again, other = (truth_of(example, Errors(), seed).of(DDP).step_s for seed in ("a", "a", "b"))
    assert first == again != other


def test_a_configuration_larger_than_the_device_ends_out_of_memory(example: Case) -> None:
    truth = truth_of(example, replace(EXACT, shift=math.log(2)))
    cluster = example.cluster.model_copy(update={"memory_gib": 0.01})
    machine = Machine(truth, example.spec.workload, cluster, example.overheads, 0.01, "a")
    ended = machine.run(DDP, MeasurePlan())
    assert ended.measurement is None and ended.failure is not None and ended.failure.kind is FailureKind.OOM


def test_a_trial_that_is_certainly_too_slow_costs_no_windows(example: Case) -> None:
    machine = machine_of(example, EXACT)
    ended = machine.run(DDP, MeasurePlan(prune_above_s=1e-6))
    assert ended.measurement is not None and ended.measurement.is_pruned and ended.seconds["timed steps"] == 0


def test_short_steps_extend_to_the_true_step_in_a_fraction_of_its_time(example: Case) -> None:
    short = ShortSteps(parity_samples=4, parity_accumulation=1, accumulations=(1, 2))
    workload = example.spec.workload.model_copy(update={"global_batch": 48})
    case = replace(example, spec=example.spec.model_copy(update={"workload": workload}))
    plans = MeasurePlan(), MeasurePlan(short_steps=short)
    whole, extended = (machine_of(case, EXACT, noise=1e-6).run(DDP, plan) for plan in plans)
    assert whole.measurement is not None and extended.measurement is not None
    assert extended.measurement.step_time_s == pytest.approx(whole.measurement.step_time_s, rel=1e-3)
    assert extended.measurement.is_extended and extended.seconds["first steps"] < whole.seconds["first steps"] / 5


def test_a_graph_is_compiled_once_in_a_study(example: Case) -> None:
    machine, compiled = machine_of(example, EXACT), DDP.model_copy(update={"compile": True})
    first, again = (machine.run(compiled, MeasurePlan()).seconds["compilation"] for _ in range(2))
    assert (first, again) == (example.overheads.compile_s, example.overheads.cached_compile_s)
