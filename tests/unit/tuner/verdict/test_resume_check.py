"""Resume checks of winners, and the answer's words about them."""

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.verdict.winner import resume_check
from shardtune.tuner.verdict.winner.resume_check import ResumeRun
from tests.support.service.simulated_worker import SPEC, failure, restarted

STANDING_ANSWER = Contender(
    trial_number=3,
    config=TrialConfig(strategy=DdpConfig()),
    description="DDP",
    tokens_per_s_per_gpu=1.0,
    peak_allocated_gib=None,
    peak_reserved_gib=None,
    runs=7,
)
RESULT = StudyResult(best=STANDING_ANSWER, baseline=STANDING_ANSWER, speedup=None, verdict=Verdict.CONFIRMED)


def next_step(*runs, has_worker=True, **spec):
    return resume_check.next_step(RESULT, StudySpec.model_validate(SPEC | spec), runs, has_worker)


def test_the_best_is_asked_once():
    assert next_step() == resume_check.CheckDue()
    assert (
        next_step(ResumeRun(2, TrialState.INFEASIBLE, failure=failure(FailureKind.OOM))) == resume_check.CheckDue()
    ), "another's run"
    passed = next_step(ResumeRun(3, TrialState.COMPLETE, restarted()))
    assert (passed.outcome, passed.steps_before, passed.steps_after, passed.reason) == ("passed", 20, 5, None)


def test_nobody_is_asked_where_it_is_not_wanted_or_cannot_be():
    assert next_step(budget={"resume_check": False}) is None
    assert "script of your own" in next_step(model={"script": "mine", "config": {}}).reason
    assert next_step(has_worker=False).outcome == "not_checked"
    assert next_step(ResumeRun(3, TrialState.WAITING), has_worker=False).outcome == "not_checked"


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (FailureKind.NUMERICS, "failed"),
        (FailureKind.OOM, "failed"),
        (FailureKind.CRASH, "failed"),
        (FailureKind.SETUP, "not_checked"),
        (FailureKind.NO_PROGRESS, "not_checked"),
        (FailureKind.WORKER_LOST, "not_checked"),
    ],
)
def test_only_what_the_configuration_did_counts_against_it(kind, outcome):
    run = ResumeRun(3, TrialState.FAILED, failure=failure(kind, "because"))
    assert next_step(run).outcome == outcome and "because" in next_step(run).reason
    assert resume_check.is_rejection(failure(kind)) is (outcome == "failed")
    assert bool(resume_check.notes([run])) is (outcome == "failed")


def test_every_figure_of_the_resumed_steps_is_held_against_the_run_that_went_on():
    def resumed(**change):
        steps = list(restarted().model_dump()["uninterrupted"])
        steps[3] |= change
        return resume_check.resume_failure(restarted(resumed=steps), PRECISIONS["fp32"])

    assert resumed() is None and resumed(loss=4.7 * (1 + 5e-6)) is None
    for change in ({"loss": 4.7001}, {"grad_norm": 1.01}, {"parameter_square_sum": 90.1}, {"parameter_sum": 3.1}):
        actual_resumed = resumed(**change)
        assert actual_resumed.kind is FailureKind.NUMERICS and "of step 23" in actual_resumed.message


def test_allocator_retries_are_too_little_memory():
    fault = resume_check.resume_failure(restarted(allocator_retries=2, allocator_ooms=0), PRECISIONS["fp32"])
    assert fault.kind is FailureKind.OVER_LIMIT and "2 times" in fault.message
    assert resume_check.resume_failure(restarted(allocator_retries=0, allocator_ooms=0), PRECISIONS["fp32"]) is None


def test_the_two_records_must_be_of_the_same_steps():
    with pytest.raises(ValidationError, match="same steps"):
        restarted(saved_at_step=19)


@pytest.mark.parametrize(
    ("projected", "runs", "spec", "is_noted"),
    [
        (2, (), {}, True),
        (3, (), {}, False),
        (2, (ResumeRun(2, TrialState.COMPLETE, restarted()),), {}, False),
        (2, (ResumeRun(3, TrialState.COMPLETE, restarted()),), {}, True),
        (2, (), {"budget": {"resume_check": False}}, False),
    ],
)
def test_a_projected_best_is_noted_where_only_the_recommended_trial_was_checked(projected, runs, spec, is_noted):
    notes = resume_check.notes_of_projected(StudySpec.model_validate(SPEC | spec), runs, projected, 3)
    assert [("trial 2 was never checked" in note) for note in notes] == [True] * is_noted
