"""Short steps: which studies and runs have them, and what they leave as it was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.short_steps import ShortSteps, copied_samples, extended_s
from shardtune.tuner.verdict import short_steps
from tests.support.values.tuner_inputs import gpus

CLUSTER = gpus()
PIPELINE = {"kind": "fsdp2", "dp_shard": 4, "pipeline_parallel": 2, "reshard_after_forward": False, "grad_sync": "last"}


def spec(global_batch: int = 96, **changes: Any) -> StudySpec:
    request = {
        "model": "llama-3.1-8b",
        "workload": {"sequence_length": 8192, "global_batch": global_batch},
        "cluster": "8xh100",
    }
    return StudyRequest.model_validate(request | changes).with_precision(PRECISIONS["bf16-mixed"])


def workload(global_batch: int) -> Workload:
    return Workload(sequence_length=8192, global_batch=global_batch)


def config(strategy: dict[str, Any] | None = None, micro_batch: int = 1) -> TrialConfig:
    return TrialConfig.model_validate({"strategy": strategy or {"kind": "ddp"}, "micro_batch": micro_batch})


def planned(samples: int, of_config: TrialConfig, global_batch: int) -> ShortSteps:
    return short_steps.of_run(samples, of_config, workload(global_batch), CLUSTER)


def test_a_study_of_long_steps_has_short_ones_and_one_of_short_steps_has_whole_ones():
    assert short_steps.parity_samples(spec(), CLUSTER, 10.0) == 16
    assert short_steps.parity_samples(spec(), CLUSTER, 2.0) is None
    assert short_steps.parity_samples(spec(), CLUSTER, None) is None


def test_a_step_of_few_micro_batches_stays_whole():
    assert short_steps.parity_samples(spec(global_batch=64), CLUSTER, 10.0) is None


def test_who_wants_whole_steps_gets_them():
    assert short_steps.parity_samples(spec(budget={"short_steps": False}), CLUSTER, 10.0) is None


@pytest.mark.parametrize("model", [{"entry_point": "own"}, {"script": "train"}])
def test_your_own_code_makes_whole_steps(model: dict[str, str]):
    assert short_steps.parity_samples(spec(model=model), CLUSTER, 10.0) is None


def test_many_micro_batches_are_timed_further_apart_than_few():
    assert planned(16, config(), 96).accumulations == (2, 4)
    assert planned(16, config(), 432).accumulations == (2, 6)


def test_what_would_save_nothing_is_timed_whole_and_compared_by_the_same_samples():
    short = planned(16, config(micro_batch=2), 96)
    assert short == ShortSteps(parity_samples=16, parity_accumulation=2, accumulations=None)
    assert planned(16, config(micro_batch=12), 96).parity_accumulation == 1, "one micro batch keeps its own peak"


def test_a_pipeline_fills_twice_in_its_shortest_step():
    short = planned(16, config(PIPELINE), 432)
    assert (short.parity_accumulation, short.accumulations) == (4, (4, 12))


@pytest.mark.parametrize(
    "strategy",
    [PIPELINE | {"pipeline_schedule": "gpipe"}, {"kind": "zero", "stage": 3, "deepcompile": True}],
    ids=["gpipe", "deepcompile"],
)
def test_what_holds_or_compiles_the_whole_step_is_timed_whole(strategy: dict[str, Any]):
    short, whole = planned(16, config(strategy), 432), config(strategy).accumulation(432, 8)
    assert (short.accumulations, short.parity_accumulation) == (None, whole)


@given(
    per_rank=st.integers(9, 80),
    micro_batch=st.integers(1, 12),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    stages=st.sampled_from([1, 2, 4]),
)
def test_every_configuration_holds_equal_copies_of_the_shared_samples(
    per_rank: int, micro_batch: int, tensor_parallel: int, stages: int
):
    global_batch = 8 * per_rank
    samples = short_steps.parity_samples(spec(global_batch), CLUSTER, 10.0)
    groups = 8 // (tensor_parallel * stages)
    if groups < 1 or global_batch % (micro_batch * groups) or global_batch // (micro_batch * groups) < stages:
        return
    strategy = PIPELINE | {"dp_shard": groups, "tensor_parallel": tensor_parallel, "pipeline_parallel": stages}
    short = planned(samples, config(strategy, micro_batch), global_batch)
    slots = short.parity_accumulation * micro_batch * groups
    assert slots % samples == 0 and short.parity_accumulation <= global_batch // (micro_batch * groups)
    copies = [
        copied_samples(range(first, first + micro_batch), slots // samples) for first in range(0, slots, micro_batch)
    ]
    counted = [sample for part in copies for sample in part]
    assert {counted.count(sample) for sample in range(samples)} == {slots // samples} and max(counted) < samples


@given(once_s=st.floats(0, 5), each_s=st.floats(0.01, 5), whole=st.integers(7, 500))
def test_the_extension_is_exact_where_a_step_repeats_its_micro_batch(once_s: float, each_s: float, whole: int):
    fewer, more = (once_s + count * each_s for count in (2, 6))
    assert extended_s(fewer, more, (2, 6), whole) == pytest.approx(once_s + whole * each_s)


def test_a_longer_short_step_that_was_faster_by_chance_extends_to_no_less_than_itself():
    assert extended_s(1.1, 1.0, (2, 6), 54) == 1.0


def test_counts_that_do_not_ascend_are_rejected_with_the_remedy():
    with pytest.raises(ValidationError, match=r"accumulations \(4, 4\) must ascend; give the smaller number first"):
        ShortSteps(parity_samples=16, parity_accumulation=2, accumulations=(4, 4))


def test_the_run_of_whole_steps_times_few_of_them_and_records_the_same_samples():
    plan = short_steps.measure_plan(MeasurePlan(), 16, config(), workload(96), CLUSTER, times_whole_step=True)
    assert plan.short_steps == ShortSteps(parity_samples=16, parity_accumulation=2)
    assert (plan.max_warmup_steps, plan.min_windows, plan.max_windows) == (1, 2, 2)


def test_an_operators_plan_cannot_make_steps_short():
    odd = MeasurePlan(short_steps=ShortSteps(parity_samples=3, parity_accumulation=1))
    assert short_steps.measure_plan(odd, None, config(), workload(96), CLUSTER) == MeasurePlan()
