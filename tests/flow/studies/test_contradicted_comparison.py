"""A later comparison that is not faster replaces a confirmed answer only with as good evidence of the same two
configurations; either way the answer names the contradiction."""

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.wording.result_runs import result_runs
from shardtune.service.wording.trust import trust
from tests.flow.helpers.sentence_checks import false_sentences, rows_of
from tests.support.service.scenarios import ASK, THREE_BACKENDS, best, create
from tests.support.service.simulated_worker import SimulatedWorker, measurement, speed_of, well

BASELINE = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
BASELINE_SPEED, TRIALS = 1100.0, 4


def read(client, study_id, part=""):
    return client.get(f"/v1/studies/{study_id}{part}").json()


class NotFaster:
    """After the search, one trial nearly reaches the baseline, and all others are far slower."""

    def __init__(self, number):
        self.number, self.searched = number, set(range(TRIALS))

    def __call__(self, lease, task):
        if lease.trial_number not in self.searched:
            self.searched.add(lease.trial_number)
            return measurement(speed_of(task.config))
        if lease.trial_number == 0:
            return measurement(BASELINE_SPEED)
        return measurement(BASELINE_SPEED * (0.99 if lease.trial_number == self.number else 0.5))


def true_reasons(client, study_id):
    """Reasons for and against the answer; the rows of the database bear them out."""
    study = Study.model_validate(read(client, study_id))
    trials = [Trial.model_validate(trial) for trial in read(client, study_id, "/trials")["trials"]]
    sentences = [reason.text for reason in trust(study, result_runs(study, study.result, trials))]
    sentences = [text for text in sentences if not text.startswith("checkpoints: ")]
    with client.app.state.context.db.read() as session:
        assert false_sentences(rows_of(session, study_id, study.result), sentences) == []
    return sentences


@pytest.fixture
def worker(quick_client):
    return SimulatedWorker(quick_client, behave=well).register()


@pytest.fixture
def confirmed(quick_client, worker):
    budget = {"max_trials": TRIALS, "max_pairs": 7}
    study_id = create(quick_client, **THREE_BACKENDS, baseline=BASELINE, budget=budget)
    worker.work()
    study = read(quick_client, study_id)
    assert study["result"]["verdict"] == "confirmed"
    return study


def extend(client, worker, study, behave):
    worker.behave = behave
    client.post(f"/v1/studies/{study['study_id']}:extend", json={"add_trials": 1}).raise_for_status()
    worker.work(200)
    after = read(client, study["study_id"])
    assert after["state"] == "complete"
    return after["result"]


def test_as_many_newer_pairs_of_the_same_configurations_win_and_name_what_was_confirmed(
    quick_client, worker, confirmed, clock
):
    before, served = confirmed["result"], best(quick_client)
    clock.turn(3600)
    worker.register()
    after = extend(quick_client, worker, confirmed, NotFaster(before["best"]["trial_number"]))
    assert (after["verdict"], after["candidate"]["trial_number"]) == ("not_faster", before["best"]["trial_number"])
    earlier = after["confirmed_before"]
    assert (earlier["trial_number"], earlier["baseline_number"]) == (before["best"]["trial_number"], 0)
    assert (earlier["pairs"], earlier["undisturbed_pairs"]) == (before["speedup"]["pairs"],) * 2
    assert earlier["ratio"] == before["speedup"]["value"]
    assert earlier["decided_at"][:16] == confirmed["finished_at"][:16]
    (reason,) = [text for text in true_reasons(quick_client, confirmed["study_id"]) if "was confirmed" in text]
    assert f"by {earlier['pairs']} pairs" in reason and earlier["decided_at"][:10] in reason
    assert best(quick_client)["recommendation_id"] != served["recommendation_id"]
    page = quick_client.get(f"/studies/{confirmed['study_id']}").text
    assert "an earlier comparison of this study confirmed a gain, and newer runs contradict it" in page


def test_the_contradicted_answer_does_not_come_back_in_place_of_the_one_that_contradicts_it(
    quick_client, worker, confirmed, clock
):
    before = confirmed["result"]
    worker.behave = lambda _lease, task: measurement(2 * speed_of(task.config))
    faster = create(quick_client, **THREE_BACKENDS, baseline=BASELINE, budget=confirmed["spec"]["budget"])
    worker.work()
    assert best(quick_client)["study_id"] == faster
    clock.turn(5)
    after = extend(quick_client, worker, confirmed, NotFaster(before["best"]["trial_number"]))
    assert after["confirmed_before"] is not None and best(quick_client)["study_id"] == faster
    quick_client.delete(f"/v1/studies/{faster}", params={"withdraw": True}).raise_for_status()
    served = best(quick_client)
    assert (served["study_id"], served["verdict"]) == (confirmed["study_id"], "not_faster")


def test_pairs_of_another_candidate_leave_the_confirmed_answer_which_says_what_they_found(
    quick_client, worker, confirmed
):
    before, served = confirmed["result"], best(quick_client)
    trials = read(quick_client, confirmed["study_id"], "/trials")["trials"]
    others = [trial for trial in trials if trial["number"] not in (0, before["best"]["trial_number"])]
    other = max(others, key=lambda trial: trial["tokens_per_s_per_gpu"])["number"]
    after = extend(quick_client, worker, confirmed, NotFaster(other))
    later = after["later_not_faster"]
    assert (after["verdict"], after["best"], after["confirmed_before"]) == ("confirmed", before["best"], None)
    assert later["trial_number"] == other and later["pairs"] > 0 and later["ratio"] == pytest.approx(0.99)
    (reason,) = [
        text for text in true_reasons(quick_client, confirmed["study_id"]) if "the confirmed answer stays" in text
    ]
    assert f"trial {other} against trial 0, 0.99×" in reason and "other configurations" in reason
    assert best(quick_client)["recommendation_id"] == served["recommendation_id"]
    history = quick_client.get("/v1/best:history", params={"target_key": served["target_key"]}).json()
    assert history["decisions"][0]["action"] == "inconclusive"
    assert "found its candidate not faster" in history["decisions"][0]["note"]
    assert quick_client.get("/v1/best", params=ASK).json()["verdict"] == "confirmed"
