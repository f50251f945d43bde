"""Reference speeds of canaries: runs that timed whole steps compare with each other, and so do extended ones."""

import math

import pytest
from sqlalchemy import select

from shardtune.api_schemas.trials.short_steps import ShortStepTimes
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.service.canaries import reference
from tests.flow.helpers.fleet import Fleet
from tests.support.service.scenarios import best

EXTENDED = ShortStepTimes(
    parity_samples=4, parity_accumulation=2, accumulations=(2, 4), fewer_s=(0.1,) * 3, more_s=(0.2,) * 3
)


def extend(run, factor=2.0):
    """Let a stored run look as if its time had been extended from short steps, at another speed."""
    measured = run.measurement
    speed = measured.tokens_per_s_per_gpu * factor
    run.measurement = measured.model_copy(update={"short_steps": EXTENDED, "tokens_per_s_per_gpu": speed})


def reference_now(session):
    (row,) = session.scalars(select(TuningTargetRow)).all()
    return reference.reference_of(session, row, row.recommended, session.scalars(select(CanaryRow.worker_id)).first())


@pytest.mark.answered(worker="sim-0")
def test_runs_of_short_steps_are_no_part_of_a_reference_of_whole_steps(quick_client, clock):
    fleet = Fleet(quick_client, clock)
    answered = best(quick_client)["best"]
    with fleet.context.db.write() as session:
        validation = session.scalars(select(RunRow).where(RunRow.purpose == "validation")).all()
        runs = [run for run in validation if run.trial.number == answered["trial_number"]]
        speeds = {run.measurement.tokens_per_s_per_gpu for run in runs}
        assert len(runs) > 3 and len(speeds) == 1
        for run in runs[3:]:
            extend(run)
        extended_first = reference_now(session).reference
    assert math.exp(extended_first.level) == pytest.approx(speeds.pop())
    assert extended_first.spread == pytest.approx(0.05), "runs of the other kind would widen it"


@pytest.mark.answered(worker="sim-0")
def test_a_canary_of_short_steps_does_not_count_against_whole_steps(quick_client, clock):
    fleet = Fleet(quick_client, clock)
    for _ in range(8):
        fleet.day()
    with fleet.context.db.write() as session:
        before = reference_now(session)
        assert before.worker_speeds
        for canary in session.scalars(select(CanaryRow)):
            for run in session.scalars(select(RunRow).where(RunRow.study_id == canary.study_id)):
                if run.measurement is not None:
                    extend(run)
        assert reference_now(session).worker_speeds == []


@pytest.mark.answered(worker="sim-0")
def test_a_recommendation_of_short_steps_needs_runs_of_its_kind(quick_client, clock):
    fleet = Fleet(quick_client, clock)
    with fleet.context.db.write() as session:
        (study,) = session.scalars(select(StudyRow)).all()
        study.parity_samples = 2
        study.cluster = study.cluster.model_copy(update={"gpus_per_node": 1})
        (row,) = session.scalars(select(TuningTargetRow)).all()
        answer = row.recommended.answer
        workload = answer.workload.model_copy(update={"global_batch": 640})
        row.recommended.answer = answer.model_copy(update={"workload": workload})
        assert reference_now(session).missing_runs == 3
