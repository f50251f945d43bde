"""Estimated time left, against the runs that a study then makes: by simulated workers whose runs last known times."""

import random

import pytest
from pydantic import TypeAdapter
from sqlalchemy import select

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, Trial
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.service.pages.views import best
from shardtune.service.wording.progress import time_left
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, speed_of

START_S, WORK_S = 4.0, 9.0
"""Seconds of each run: a fixed part, and what a run at 1000 tokens/s/GPU adds."""
_TRIALS = TypeAdapter(list[Trial])


class TimedWorker(SimulatedWorker):
    """Simulated worker whose runs last as long as their speed says, which varies by 2 %."""

    def __init__(self, client, clock, seed):
        super().__init__(client, behave=self._run)
        self._clock = clock
        self._chance, self.lasted, self._speed = random.Random(seed), [], 1000.0

    def _run(self, _lease, task):
        self._speed = speed_of(task.config) * self._chance.uniform(0.98, 1.02)
        return measurement(self._speed)

    def report(self, lease, outcome, **body):
        seconds = START_S + WORK_S * 1000 / self._speed
        self.lasted.append(seconds)
        self._clock.turn(seconds)
        return super().report(lease, outcome, gpu_seconds=seconds * 2, **body)


@pytest.mark.parametrize(("trials", "seed"), [(8, 1), (14, 2)])
def test_after_two_trials_the_time_left_is_right_within_a_factor_of_one_and_a_half(quick_client, clock, trials, seed):
    worker = TimedWorker(quick_client, clock, seed).register()
    study_id = create(quick_client, budget={"max_trials": trials})
    for _ in range(3):  # the profile, then two trials
        worker.do(worker.lease())
    study = Study.model_validate(quick_client.get(f"/v1/studies/{study_id}").json())
    runs_made = time_left.count_runs(
        study, _TRIALS.validate_python(quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"])
    )
    so_far = sum(worker.lasted)
    *_, number, unit = time_left.estimate(study, runs_made, so_far).split()
    stated = int(number) * (60 if unit == "min" else 1)
    worker.work()
    assert quick_client.get(f"/v1/studies/{study_id}").json()["state"] == "complete" and runs_made.finished == 2
    duration = sum(worker.lasted) - so_far
    assert duration / 1.5 < stated < duration * 1.5, (stated, duration)


def test_pages_count_the_time_of_runs_as_the_command_line_does_with_what_was_repeated(quick_client, clock):
    worker = TimedWorker(quick_client, clock, 3).register()
    study_id = create(quick_client, budget={"max_trials": 6})
    worker.work()
    database = quick_client.app.state.context.db
    with database.write() as session:
        for purpose in (RunPurpose.SEARCH, RunPurpose.VALIDATION):
            run = session.scalars(select(RunRow).where(RunRow.purpose == purpose)).first()
            counted = run.attempts[-1]
            # One attempt before it was disturbed, and took twice as long.
            run.attempt = counted.attempt = 2
            worker_of = {"worker_id": counted.worker_id, "worker_session": counted.worker_session}
            spent = {"started_at": counted.started_at, "gpu_seconds": 2 * counted.gpu_seconds}
            session.add(AttemptRow(run_id=run.id, attempt=1, end=AttemptEnd.DISTURBED, **worker_of, **spent))
    study = Study.model_validate(quick_client.get(f"/v1/studies/{study_id}").json())
    trials = _TRIALS.validate_python(quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"])
    with database.read() as session:
        (on_pages,) = best.runs_by_study(session, [study]).values()
    runs_made = time_left.count_runs(study, trials)
    assert (on_pages.validation_runs, on_pages.finished) == (runs_made.validation_runs, runs_made.finished)
    names = ("mean_validation_s", "shortest_search_s", "mean_chosen_s", "repeats_per_run")
    on_page, in_trials = ([getattr(counts, name) for name in names] for counts in (on_pages, runs_made))
    assert on_page == pytest.approx(in_trials) and all(on_page)
