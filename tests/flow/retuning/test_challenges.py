"""Retunes from the request to the outcome: the incumbent is challenged first, and only a moved ranking is searched."""

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.retuning import challenge_steps
from tests.flow.helpers.retuning_lab import CHANGED, Lab
from tests.support.service.scenarios import best, decide, in_threads, tune
from tests.support.service.simulated_worker import SimulatedWorker, speed_of

TWO_BACKENDS = {"space": {"backends": ["ddp", "fsdp2"]}}


def ddp_is_fastest(config):
    return speed_of(config) * (2.0 if config.backend == "ddp" else 1.0)


class Noisy:
    """Challengers are 10 % faster, and a third of their runs are disturbed."""

    def __init__(self, incumbent):
        self.incumbent, self.count = TrialConfig.model_validate(incumbent), 0

    def __call__(self, config):
        if config == self.incumbent:
            return 1000.0
        self.count += 1
        return 600.0 if self.count > 5 and self.count % 3 == 0 else 1100.0


def tuned_on_two_backends(client):
    """Tune with a worker whose runs do not say how far their windows lie apart."""
    tune(client, is_quiet=False, **TWO_BACKENDS)


@pytest.fixture
def sqlite_start(request, sqlite_start, sqlite_after):
    """Begin with the answer of two backends where a test names it."""
    return sqlite_after(tuned_on_two_backends) if "of_two_backends" in request.fixturenames else sqlite_start


@pytest.fixture
def of_two_backends(quick_client):
    """Answer that the service's database begins with."""
    return best(quick_client)


def decisions(client, key):
    actual_decisions = client.get("/v1/best:history", params={"target_key": key}).json()["decisions"]
    return [entry["action"] for entry in actual_decisions]


@pytest.mark.answered
def test_nothing_changed_is_kept_at_a_third_of_the_runs_and_fresh_on_the_new_fingerprint(client):
    lab = Lab(client)
    full = sum(lab.study(best(client)["study_id"])["trials"].values())
    full += client.get(f"/v1/studies/{best(client)['study_id']}/best").json()["final_comparison"]["runs"]
    before, lab.fingerprint = best(client), CHANGED
    actual, runs = lab.retune()
    assert (actual["state"], actual["outcome"]) == ("ended", "kept"), actual["reason"]
    assert actual["search_study_id"] is None and 0 < sum(runs) <= full / 3, (runs, full)
    after = best(client)
    assert after["fingerprint"]["kernel"] == "6.2" and after["freshness"] == "fresh"
    assert after["target_key"] != before["target_key"] and after["best"]["config"] == before["best"]["config"]
    assert after["renewed"]["recommendation_id"] == before["recommendation_id"]
    assert after["renewed"]["verdict"] == "confirmed" and after["confidence"]["level"] == "high"
    by_old_key = best(client, target_key=before["target_key"])
    assert by_old_key == after | {"asked_key": before["target_key"]}
    assert decisions(client, after["target_key"]) == ["renewed", "proposed"]
    assert decisions(client, before["target_key"]) == ["superseded", "recommended", "proposed"]
    assert lab.events(actual["challenge_study_id"]) == ["best.renewed"]


def test_a_challenge_repeats_disturbed_runs_as_often_as_the_study_allows(quick_client):
    lab = Lab(quick_client)
    lab.tune(budget={"max_trials": 4, "repeat_disturbed": 0}, **TWO_BACKENDS)
    lab.fingerprint = CHANGED
    actual, _ = lab.retune()
    assert lab.study(actual["challenge_study_id"])["spec"]["budget"]["repeat_disturbed"] == 0


@pytest.mark.wide_on_postgres
def test_a_moved_ranking_is_searched_wide_and_the_faster_one_takes_over(client):
    lab = Lab(client)
    lab.tune(**TWO_BACKENDS)
    before, lab.fingerprint = best(client), CHANGED
    lab.speed = ddp_is_fastest
    actual, _ = lab.retune()
    assert actual["outcome"] == "replaced", actual["reason"]
    assert actual["gain"]["ci95"][0] > 1.5 and actual["reason"] == "it is recommended"
    search = lab.study(actual["search_study_id"])
    assert search["system_study"]["kind"] == "search" and search["system_study"]["warm_study_id"] == before["study_id"]
    assert search["result"]["baseline"]["config"] == before["best"]["config"]
    after = best(client)
    assert after["best"]["config"]["strategy"]["kind"] == "ddp" and after["study_id"] == search["study_id"]
    assert after["fingerprint"]["kernel"] == "6.2" and after["renewed"] is None
    assert lab.events(search["study_id"]) == ["best.replaced"]
    back = decide(client, before["target_key"], "rollback").json()
    assert back["answer"]["result"]["best"]["config"] == before["best"]["config"]
    assert best(client)["best"]["config"] == before["best"]["config"] and best(client)["is_pinned"]


@pytest.mark.parametrize("consent", ["pinned", "approval"])
def test_without_consent_the_faster_one_waits_and_the_incumbent_is_fresh(quick_client, of_two_backends, consent):
    lab = Lab(quick_client)
    before, lab.fingerprint = of_two_backends, CHANGED
    if consent == "pinned":
        decide(quick_client, before["target_key"], "pin").raise_for_status()
    else:
        quick_client.put("/v1/projects/default", json={"requires_approval": True})
    lab.speed = ddp_is_fastest
    actual, _ = lab.retune()
    assert actual["outcome"] == "replaced" and actual["reason"].endswith("waits for approval")
    best_answer = best(quick_client)
    assert best_answer["best"]["config"] == before["best"]["config"] and best_answer["freshness"] == "fresh"
    assert best_answer["fingerprint"]["kernel"] == "6.2" and best_answer["is_pinned"] == (consent == "pinned")
    assert lab.events(actual["search_study_id"]) == ["best.proposed"]
    decide(quick_client, best_answer["target_key"], "approve").raise_for_status()
    assert best(quick_client)["best"]["config"]["strategy"]["kind"] == "ddp"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_an_incumbent_that_no_longer_runs_is_searched_for_anew(client):
    lab = Lab(client)
    before, lab.fingerprint, lab.broken = best(client), CHANGED, {"fsdp2"}
    assert before["best"]["config"]["strategy"]["kind"] == "fsdp2"
    actual, _ = lab.retune()
    assert actual["outcome"] == "replaced" and actual["gain"] is None
    assert "the incumbent cannot be run any longer (oom)" in actual["reason"]
    assert best(client)["best"]["config"]["strategy"]["kind"] != "fsdp2"


@pytest.mark.answered
def test_what_could_not_be_shown_stays_stale_with_the_reason(quick_client):
    lab = Lab(quick_client)
    before, lab.fingerprint = best(quick_client), CHANGED
    lab.speed = Noisy(before["best"]["config"])
    actual, _ = lab.retune()
    assert actual["outcome"] == "inconclusive" and "could not be shown" in actual["reason"]
    after = best(quick_client)
    assert after["recommendation_id"] == before["recommendation_id"]
    assert decisions(quick_client, before["target_key"])[0] == "inconclusive"


@pytest.mark.answered
def test_a_retune_without_a_change_renews_the_target_under_its_own_key(quick_client, clock):
    lab = Lab(quick_client)
    before = best(quick_client)
    clock.turn(60)
    first, _ = lab.retune("manual")
    again, runs = lab.retune("schedule")
    assert (first["outcome"], again["outcome"]) == ("kept", "kept") and sum(runs) <= 10
    after = best(quick_client)
    assert after["target_key"] == before["target_key"] and after["study_id"] == again["challenge_study_id"]
    assert after["renewed"]["study_id"] == before["study_id"], "what it goes back to, however often it was renewed"
    assert decide(quick_client, after["target_key"], "rollback").json()["study_id"] == first["challenge_study_id"]


@pytest.mark.answered
def test_a_retune_whose_fingerprint_is_gone_begins_again_on_the_one_there_is(quick_client):
    lab = Lab(quick_client)
    lab.fingerprint = CHANGED
    SimulatedWorker(quick_client, fingerprint=CHANGED).register()
    first = lab.ask()
    lab.step()
    lab.fingerprint = CHANGED.model_copy(update={"kernel": "6.3"})
    SimulatedWorker(quick_client, fingerprint=lab.fingerprint).register()
    for _ in range(3):
        lab.step()
        lab.work()
    every = {row["retune_id"]: row for row in quick_client.get("/v1/retunes").json()["retunes"]}
    ended = every.pop(first)
    (again,) = every.values()
    assert ended["outcome"] == "inconclusive" and "no worker has the fingerprint" in ended["reason"]
    assert lab.study(ended["challenge_study_id"])["state"] == "cancelled"
    assert again["outcome"] == "kept" and best(quick_client)["fingerprint"]["kernel"] == "6.3"


@pytest.mark.answered
def test_replicas_and_repeated_steps_make_one_challenge_and_one_outcome(client):
    lab = Lab(client)
    lab.fingerprint = CHANGED
    SimulatedWorker(client, fingerprint=CHANGED).register()
    retune_id = lab.ask()
    in_threads(lambda _: lab.step(), range(4))
    row = lab.row(retune_id)
    assert challenge_steps.start_challenge(lab.context, row) == row.challenge_study_id, "asked again, the same"
    lab.work()
    in_threads(lambda _: challenge_steps.advance_retune(lab.context, row), range(4))
    assert client.get(f"/v1/retunes/{retune_id}").json()["outcome"] == "kept"
    assert decisions(client, best(client)["target_key"]) == ["renewed", "proposed"]
    assert len(client.get("/v1/studies").json()["studies"]) == 2


def test_the_search_of_a_retune_keeps_the_gpu_seconds_of_its_origin_and_not_its_time(quick_client):
    """A retune waits for windows and budgets: the time of its search would be used up before its first pair."""
    lab = Lab(quick_client)
    lab.tune(budget={"max_trials": 4, "max_gpu_seconds": 400, "max_wall_seconds": 3600}, **TWO_BACKENDS)
    lab.fingerprint, lab.speed = CHANGED, ddp_is_fastest
    actual, _ = lab.retune()
    budget = lab.study(actual["search_study_id"])["spec"]["budget"]
    assert (budget["max_gpu_seconds"], budget["max_wall_seconds"]) == (400, None)
