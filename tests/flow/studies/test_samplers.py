"""Samplers of a study: the one it names, else the guided sampler."""

from shardtune.tuner.search.samplers import gp_needs
from tests.support.service.scenarios import run_study
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly, well


def test_a_guided_study_says_why_each_trial_was_tried_and_needs_two_seeds(quick_client):
    study, trials = run_study(quick_client, quietly, sampler="guided")
    assert study["state"] == "complete" and study["spec"]["sampler"] == "guided"
    sampled = [trial for trial in trials if trial["origin"] == "sampler"]
    assert len(trials) == 8 and len(sampled) >= 4
    assert all(trial["reason"]["expected_gain"] >= 0 and trial["reason"]["tests"] for trial in sampled)
    assert all(trial["reason"] is None for trial in trials if trial["origin"] != "sampler")
    page = quick_client.get(f"/studies/{study['study_id']}/trials/{sampled[-1]['number']}").text
    assert "Why it was tried" in page and "expected speed-up over the fastest" in page


def test_a_study_without_a_number_of_trials_ends_where_little_is_expected(quick_client):
    study, trials = run_study(quick_client, well, sampler="guided", budget={})
    assert study["state"] == "complete" and len(trials) < 40
    assert "expected to gain" in study["reason"] or "gained less than" in study["reason"]


def test_every_sampler_can_be_named_and_no_other(quick_client):
    study, trials = run_study(quick_client, quietly, sampler="random")
    assert study["state"] == "complete" and all(trial["reason"] is None for trial in trials)
    answer = quick_client.post("/v1/studies", json=SPEC | {"sampler": "best"})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == "sampler" and "guided" in error["message"]


def test_a_sampler_that_is_not_installed_is_rejected_with_what_it_needs(quick_client):
    SimulatedWorker(quick_client).register()
    answer = quick_client.post("/v1/studies", json=SPEC | {"sampler": "gp"})
    if gp_needs.gp_is_installed():
        assert answer.status_code == 201
        return
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == "sampler" and "shardtune[gp]" in error["message"]
