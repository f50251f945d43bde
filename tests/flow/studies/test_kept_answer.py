"""A confirmed answer outlasts an extension whose comparison is undecided, and says so."""

import copy
from types import MappingProxyType

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.wording.result_runs import result_runs
from shardtune.service.wording.trust import trust
from tests.flow.helpers.sentence_checks import false_sentences, rows_of
from tests.support.service.scenarios import ASK, THREE_BACKENDS, create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, speed_of, well

BASELINE = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
BASELINE_SPEED, TRIALS = 1100.0, 4


class Wavering:
    """Every second validation run of a challenger is slower than the baseline, so that pairs decide nothing."""

    def __init__(self):
        self.runs = {}

    def __call__(self, lease, task):
        number = lease.trial_number
        self.runs[number] = self.runs.get(number, 0) + 1
        is_search = number >= TRIALS and self.runs[number] == 1
        if number == 0 or is_search:
            return measurement(speed_of(task.config))
        return measurement(BASELINE_SPEED * (0.9 if self.runs[number] % 2 else 1.2))


def read(client, study_id, part=""):
    return client.get(f"/v1/studies/{study_id}{part}").json()


def extend_in_vain(client, budget=MappingProxyType({}), **inventory):
    """Study with a confirmed answer whose extension by trials was undecided; its worker, its id, and its state before."""
    worker = SimulatedWorker(client, behave=well, **inventory).register()
    budget = {"max_trials": TRIALS, "max_pairs": 7} | budget
    study_id = create(client, **THREE_BACKENDS, baseline=BASELINE, budget=budget)
    worker.work()
    before = read(client, study_id)
    assert before["result"]["verdict"] == "confirmed"
    worker.behave = Wavering()
    client.post(f"/v1/studies/{study_id}:extend", json={"add_trials": 2}).raise_for_status()
    best = client.get("/v1/best", params=ASK).json()
    worker.work(200)
    return worker, study_id, before["result"], best


@pytest.fixture(scope="module")
def extended_start(sqlite_after):
    """Database with the study extended in vain, and what `extend_in_vain` returned."""
    made = []

    def extended_in_vain(client):
        made.append(extend_in_vain(client))

    return sqlite_after(extended_in_vain), *made[0]


@pytest.fixture
def sqlite_start(request, sqlite_template):
    """Begin with the study where a test names it."""
    named = "extended" in request.fixturenames
    return request.getfixturevalue("extended_start")[0] if named else sqlite_template


@pytest.fixture
def extended(quick_client, extended_start):
    """Worker that goes on with the study of the service's database, the study's id, and its state before."""
    _, worker, *facts = extended_start
    worker = copy.copy(worker)
    worker.client = quick_client
    return worker, *facts


def test_a_confirmed_answer_outlasts_an_undecided_extension(quick_client, extended):
    _, study_id, before, best = extended
    study = read(quick_client, study_id)
    after = study["result"]
    assert (study["state"], after["verdict"], after["undecided"]) == ("complete", "confirmed", None)
    for field in ("best", "baseline", "speedup", "candidate", "resume_check"):
        assert after[field] == before[field]
    later = after["later_undecided"]
    assert (later["pairs"], after["later_too_busy"], before["later_undecided"]) == (7, None, None)
    assert 0 < later["won_pairs"] < 7
    assert after["search_runs"] > before["search_runs"]
    assert after["final_comparison"]["number"] == before["final_comparison"]["number"]
    assert after["final_comparison"]["runs"] > before["final_comparison"]["runs"]
    now = quick_client.get("/v1/best", params=ASK).json()
    assert (now["recommendation_id"], now["verdict"]) == (best["recommendation_id"], "confirmed")
    history = quick_client.get("/v1/best:history", params={"target_key": best["target_key"]}).json()
    assert history["decisions"][0]["action"] == "inconclusive"
    assert history["decisions"][0]["note"] == "extended, and the new comparison was undecided"


def test_the_winner_of_the_undecided_comparison_is_no_answer_and_makes_no_run_of_one(quick_client):
    purposes = ("resume_check", "sustained")
    _, study_id, before, _ = extend_in_vain(quick_client, {"sustained_run_s": 5.0}, task_kinds=purposes)
    trials, after = read(quick_client, study_id, "/trials")["trials"], read(quick_client, study_id)["result"]
    made = [
        (run["purpose"], trial["number"]) for trial in trials for run in trial["runs"] if run["purpose"] in purposes
    ]
    assert sorted(made) == [(purpose, before["best"]["trial_number"]) for purpose in purposes]
    assert after["later_undecided"] is not None and before["sustained"]["outcome"] == "measured"
    assert after["sustained"] == before["sustained"]


def test_the_page_says_that_the_newest_comparison_was_undecided(quick_client, extended):
    _, study_id, *_ = extended
    page = quick_client.get(f"/studies/{study_id}").text
    assert "the new comparison after the study was extended was undecided, so its confirmed answer stays" in page
    assert "recommended</span>" in page
    assert "enough for the verdict" not in page, "the runs of the newest comparison decided nothing"


def test_what_is_said_of_the_kept_answer_is_true(quick_client, extended):
    _, study_id, *_ = extended
    study = Study.model_validate(read(quick_client, study_id))
    trials = [Trial.model_validate(trial) for trial in read(quick_client, study_id, "/trials")["trials"]]
    sentences = [reason.text for reason in trust(study, result_runs(study, study.result, trials))]
    sentences = [text for text in sentences if text not in study.warnings and not text.startswith("checkpoints: ")]
    assert any("was undecided" in text for text in sentences)
    with quick_client.app.state.context.db.read() as session:
        assert false_sentences(rows_of(session, study_id, study.result), sentences) == []


def test_added_pairs_go_on_with_the_undecided_comparison(quick_client, extended):
    worker, study_id, before, _ = extended
    later = read(quick_client, study_id)["result"]["later_undecided"]
    worker.behave = well
    more = quick_client.post(f"/v1/studies/{study_id}:extend", json={"add_pairs": 17})
    assert (more.status_code, more.json()["phase"]) == (200, "final_comparison"), more.text
    worker.work(200)
    result = read(quick_client, study_id)["result"]
    assert (result["verdict"], result["later_undecided"]) == ("confirmed", None)
    assert result["final_comparison"]["number"] > before["final_comparison"]["number"]
    assert result["final_comparison"]["pairs"] > later["pairs"], "its first pairs count on"
    rejected = quick_client.post(f"/v1/studies/{study_id}:extend", json={"add_pairs": 3})
    assert (rejected.status_code, rejected.json()["code"]) == (409, "nothing_to_extend")
    assert "is confirmed" in rejected.json()["detail"]
