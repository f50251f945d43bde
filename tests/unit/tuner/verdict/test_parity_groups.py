"""Trials that train the same: the reference, its confirmation, and the bounds of differences."""

import re
from dataclasses import replace

from shardtune.api_schemas.training.optimizers import Muon
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.short_steps import ShortStepTimes
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.planning import agreement
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import parity
from tests.support.values.tuner_inputs import complete, cpu, gpus, measured
from tests.unit.tuner.verdict.backend_configs import DDP, FSDP2, ZERO, ZERO_3

BF16, FP32 = PRECISIONS["bf16-mixed"], PRECISIONS["fp32"]


def workload_of(**changes):
    values = {"sequence_length": 64, "global_batch": 16, "precision": "bf16-mixed"} | changes
    return Workload.model_validate(values)


def judge(*observations, precision=BF16, single=False):
    return parity.group_by_parity(observations, precision, single)


def test_the_reference_needs_a_trial_of_another_backend():
    assert judge(complete(0, DDP), complete(1, DDP.model_copy(update={"micro_batch": 2}))).reference is None
    agreed = judge(complete(0, DDP), complete(1, FSDP2))
    assert (agreed.reference, agreed.confirmed_by, agreed.infeasible) == (0, 1, {})


def test_a_third_trial_decides_a_disagreement():
    history = [complete(0, ZERO, loss=5.35), complete(1, FSDP2, loss=4.966)]
    assert judge(*history).reference is None
    decided = judge(*history, complete(2, DDP, loss=4.9662))
    assert (decided.reference, decided.confirmed_by) == (1, 2)
    assert "loss of step 0 is 5.35, but 4.966 in reference trial 1" in decided.infeasible[0]


def test_the_largest_differences_of_trials_that_agree_are_kept_beside_the_bounds():
    history = [complete(0, ZERO), complete(1, FSDP2, loss=5.001), complete(2, DDP, loss=5.35)]
    groups = judge(*history)
    assert set(groups.infeasible) == {2}
    steps = zip(*(obs.measurement.trajectory for obs in history[:2]), strict=True)
    largest = max(parity.relative_difference(first.loss, other.loss) for first, other in steps)
    assert parity.largest_differences(history, groups)["loss"] == largest
    assert parity.largest_differences(history, judge(history[0])) == {}
    (note,) = agreement.measured_differences(history, workload_of(), gpus(), groups)
    assert "largest differences from the reference training: loss" in note and "(allowed 2e-03)" in note
    assert agreement.measured_differences(history, workload_of(), cpu(2), groups) == ()


def test_the_bounds_beside_the_largest_differences_are_those_of_the_training():
    history = [complete(0, ZERO), complete(1, FSDP2, loss=5.001)]
    notes = [
        agreement.measured_differences(history, workload_of(**changes), gpus(), judge(*history))[0]
        for changes in (
            {"float8": "tensorwise"},
            {"float8": "rowwise"},
            {"precision": "fp32", "optimizer": "adamw-8bit"},
        )
    ]
    bounds = [re.findall(r"loss \S+ \(allowed ([^)]+)\)", note)[0] for note in notes]
    assert bounds == ["2e-03, between micro batches 6e-03", "2e-03", "1e-04"]
    assert all(len(re.findall("allowed", note)) == 4 for note in notes)


def test_trials_of_another_batch_are_not_compared():
    short = ShortStepTimes(parity_samples=16, parity_accumulation=2)
    history = [complete(0, ZERO), complete(1, FSDP2), complete(2, DDP)]
    other = replace(history[2], measurement=history[2].measurement.model_copy(update={"short_steps": short}))
    decided = judge(*history[:2], other)
    assert "trained on 16 samples and those of reference trial 0 on the whole global batch" in decided.infeasible[2]
    assert judge(history[0], other).reference is None


def test_a_later_pair_does_not_replace_the_reference():
    history = [complete(0, ZERO, loss=5.35), complete(1, FSDP2), complete(2, DDP), complete(3, FSDP2, loss=5.35)]
    assert judge(*history).reference == 1
    assert set(judge(*history).infeasible) == {0, 3}


def test_a_trial_rejected_before_is_rejected_again():
    failure = Failure(kind=FailureKind.NUMERICS, message="left the reference")
    rejected = Observation(2, ZERO, "sampler", TrialState.INFEASIBLE, measured(9, loss=5.35), failure)
    assert set(judge(complete(0, DDP), complete(1, FSDP2), rejected).infeasible) == {2}


def test_a_run_over_its_memory_may_confirm_but_not_lead():
    failure = Failure(kind=FailureKind.OVER_LIMIT, message="too much")
    over = Observation(0, DDP, "default", TrialState.INFEASIBLE, measured(9), failure)
    agreed = judge(over, complete(1, FSDP2))
    assert (agreed.reference, agreed.confirmed_by) == (1, 0)


def test_with_one_backend_its_other_configurations_confirm():
    assert judge(complete(0, ZERO), single=True).reference == 0
    pair = judge(complete(0, ZERO), complete(1, ZERO_3), single=True)
    assert (pair.reference, pair.confirmed_by) == (0, 1)
    assert judge(complete(0, ZERO), complete(1, ZERO_3, loss=6), single=True).reference is None


def test_fp32_is_held_to_tighter_bounds():
    history = [complete(0, DDP, loss=5.0), complete(1, FSDP2, loss=5.001)]
    assert judge(*history).reference == 0
    assert judge(*history, precision=FP32).reference is None


def test_updates_that_are_rounded_may_differ_more_but_not_under_a_rounded_precision() -> None:
    assert parity.tolerance(FP32, Muon()).loss > parity.tolerance(FP32).loss
    assert parity.tolerance(FP32, Muon()).loss < parity.tolerance(BF16).loss
    assert parity.tolerance(BF16, Muon()) == parity.tolerance(BF16)
