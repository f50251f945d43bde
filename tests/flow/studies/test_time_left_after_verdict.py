"""Time left once the verdict is known: no pair follows a resume check, a sustained run or a rehearsal, here and on pages."""

from pydantic import TypeAdapter

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.api_schemas.trials.trial import Run, RunPurpose, Trial
from shardtune.service.pages.views import best
from shardtune.service.wording.progress import time_left
from tests.support.service.scenarios import WORKLOAD, create
from tests.support.service.simulated_worker import SimulatedWorker, quietly, rehearsed

SUSTAINED_S = 5.0
STUDY = {
    "target": "4x2",
    "workload": WORKLOAD | {"global_batch": 32},
    "space": {"backends": ["fsdp1", "fsdp2"], "knobs": {"malloc": "default", "compile": False}},
    "budget": {"max_trials": 6, "sustained_run_s": SUSTAINED_S},
}
AFTER_VERDICT = (RunPurpose.RESUME_CHECK, RunPurpose.SUSTAINED, RunPurpose.REHEARSAL)
_TRIALS = TypeAdapter(list[Trial])


def test_no_pair_is_left_during_runs_that_follow_the_verdict(quick_client):
    """A rehearsal was said to have minutes left "if all 24 pairs are needed", and pages said so of a resume check."""
    worker = SimulatedWorker(quick_client, behave=quietly, rehearse=rehearsed, task_kinds=TASK_KINDS).register()
    study_id = create(quick_client, **STUDY)
    left: dict[RunPurpose, str] = {}
    while (lease := worker.lease()) is not None:
        study = Study.model_validate(quick_client.get(f"/v1/studies/{study_id}").json())
        trials = _TRIALS.validate_python(quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"])
        open_runs: list[Run] = [run for trial in trials for run in trial.runs if run.state.is_open]
        counts = time_left.count_runs(study, trials)
        with quick_client.app.state.context.db.read() as session:
            (on_pages,) = best.runs_by_study(session, [study]).values()
        known = [(runs.has_later_run, runs.is_rehearsing) for runs in (counts, on_pages)]
        assert known[0] == known[1]
        for run in open_runs:
            if run.purpose in AFTER_VERDICT:
                left[run.purpose] = time_left.words(study, trials, 60.0)
                assert time_left.estimate(study, on_pages, 60.0) == time_left.estimate(study, counts, 60.0)
        worker.do(lease)
    assert set(left) == set(AFTER_VERDICT)
    assert not [words for words in left.values() if "pairs" in words]
    assert left[RunPurpose.REHEARSAL] == "", "a rehearsal is the last run, and is not timed"
