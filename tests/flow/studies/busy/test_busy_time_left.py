"""Time left of a final comparison beside bursts of other programs: pairs that are left out run again."""

from pydantic import TypeAdapter

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.pages.views import best
from shardtune.service.wording.progress import time_left
from tests.flow.studies.busy.busy_studies import FEW, OWN_BASELINE, bursts
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import SimulatedWorker

_TRIALS = TypeAdapter(list[Trial])


def test_terminal_and_pages_count_the_pairs_that_are_left_out(quick_client):
    """Runs of such pairs counted as done: "about 8 s left" became "at most 5 min"."""
    worker = SimulatedWorker(quick_client, behave=bursts()).register()
    study_id = create(quick_client, **{**OWN_BASELINE, "budget": FEW | {"repeat_disturbed": 0}})
    newest = time_left.RunCounts(0, None, 0, None)
    while (lease := worker.lease()) is not None:
        study = Study.model_validate(quick_client.get(f"/v1/studies/{study_id}").json())
        if study.phase is StudyPhase.FINAL_COMPARISON:
            trials = _TRIALS.validate_python(quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"])
            newest = time_left.count_runs(study, trials)
            with quick_client.app.state.context.db.read() as session:
                (on_pages,) = best.runs_by_study(session, [study]).values()
            assert on_pages.pairs == newest.pairs
            assert time_left.estimate(study, on_pages, 60.0) == time_left.estimate(study, newest, 60.0)
        worker.do(lease)
    compared = quick_client.get(f"/v1/studies/{study_id}").json()["result"]["final_comparison"]
    # The last pair is complete only with the run that was leased last.
    assert compared["uneven_pairs"] > 2
    assert sum(newest.pairs) in (compared["pairs"] + compared["uneven_pairs"] - n for n in (0, 1))
