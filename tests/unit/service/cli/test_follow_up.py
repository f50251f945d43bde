"""`explain --try`: the study that measures a remedy has nothing else to try, and what came of it is told whatever it was."""

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import Speedup, StudyResult, Verdict
from shardtune.api_schemas.trials.diagnosis import Finding, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.trial import Rejection, Trial
from shardtune.service.cli import remedy_job
from shardtune.service.cli.explain.trace_run import RecordedTrial
from shardtune.tuner.search import space
from tests.support.values import synthetic_studies, tuner_inputs

STUDY = synthetic_studies.study_of(global_batch=16).model_copy(
    update={"model_summary": tuner_inputs.llama("llama-tiny")}
)
EVERY = {"kind": "ddp", "grad_sync": "every"}


def recorded(strategy: dict, **config) -> RecordedTrial:
    trial_config = TrialConfig.model_validate({"strategy": strategy, **config})
    task = TrialTask(model=STUDY.spec.model, workload=STUDY.spec.workload, cluster=STUDY.cluster, config=trial_config)
    traced = ProfilerRecording(folder="traces", bytes=1, steps=3, step_s=1, plain_step_s=1, elapsed_s=1)
    return RecordedTrial(traced, STUDY, task, None)


def finding(**knobs) -> Finding:
    observed = {"kind": "host_bound", "evidence": "seen", "measured": 0.5, "threshold": 0.3, "remedy": "change"}
    return Finding(**observed, knobs=knobs, expected_gain=0.1)


@pytest.mark.parametrize(
    ("strategy", "config", "knobs"),
    [
        (EVERY, {}, {"grad_sync": "last"}),
        (EVERY, {"micro_batch": 1}, {"micro_batch": 8}),
        ({"kind": "zero", "stage": 3}, {"micro_batch": 2}, {"stage": 2}),
        ({"kind": "fsdp2", "dp_shard": 2}, {}, {"dp_shard": 1, "dp_replicate": 2}),
        ({"kind": "fsdp2", "dp_shard": 2}, {}, {"reshard_after_forward": False}),
        ({"kind": "fsdp1", "dp_shard": 2}, {}, {"sharding_strategy": "SHARD_GRAD_OP"}),
        ({"kind": "ddp"}, {"activation_checkpointing": "full"}, {"activation_checkpointing": "none"}),
    ],
)
def test_a_follow_up_holds_the_traced_trial_against_its_remedy_and_nothing_else(strategy, config, knobs):
    request = remedy_job.remedy_study(recorded(strategy, **config), finding(**knobs))
    assert request is not None and request.baseline == recorded(strategy, **config).task.config
    (only,) = space.build(request.workload, STUDY.cluster, STUDY.model_summary, request.space).enumerate()
    values = {**only.model_dump(), **only.strategy.model_dump()}
    assert {name: values[name] for name in knobs} == knobs and only.strategy.kind == strategy["kind"]


def test_a_follow_up_keeps_every_field_that_it_neither_sets_nor_leaves_out():
    values = {"objective": Objective(memory_headroom=0.2)}
    set_here = {"cluster", "budget", "baseline", "space", "sampler", "model", "workload"}
    assert set(StudyRequest.model_fields) == {*values, *set_here, *remedy_job.LEFT_OUT}, "give the field a value"
    traced = recorded(EVERY)
    study = traced.study.model_copy(update={"spec": traced.study.spec.model_copy(update=values)})
    request = remedy_job.remedy_study(traced._replace(study=study), finding(grad_sync="last"))
    assert request is not None and request.objective == values["objective"]


def test_a_finding_without_knobs_is_not_tried():
    assert remedy_job.remedy_study(recorded(EVERY), finding()) is None


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [(Verdict.CONFIRMED, "faster"), (Verdict.NOT_FASTER, "not_faster"), (Verdict.UNDECIDED, "undecided")],
)
def test_the_verdict_of_the_follow_up_is_what_is_told(verdict, outcome):
    config = recorded(EVERY).task.config
    contender_of, speedup = synthetic_studies.contender_of(config), Speedup(value=1.1, ci95=(1.02, 1.2), pairs=8)
    result = StudyResult(best=contender_of, baseline=contender_of, speedup=speedup, verdict=verdict)
    reported_outcome = remedy_job.remedy_result(STUDY.model_copy(update={"result": result}), [], [])
    assert (reported_outcome.outcome, reported_outcome.speedup, reported_outcome.ci95, reported_outcome.pairs) == (
        outcome,
        1.1,
        (1.02, 1.2),
        8,
    )


def test_a_remedy_that_does_not_run_is_said_with_its_reason():
    config = recorded(EVERY).task.config
    failure = Failure(kind=FailureKind.OVER_LIMIT, message="5 GiB of 4")
    trial = Trial(number=1, state="infeasible", origin="sampler", config=config, description="DDP", failure=failure)
    assert remedy_job.remedy_result(STUDY, [trial], []).why == "over_limit: 5 GiB of 4"
    rejected = Rejection(config=config, needed_gib=9, available_gib=4, reason="holds 9 GiB")
    outcome = remedy_job.remedy_result(STUDY, [], [rejected])
    assert (outcome.outcome, outcome.why) == ("does_not_run", "holds 9 GiB")
