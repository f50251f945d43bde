"""A change of the machines: marked, announced once after the debounce, and measured again once, in any number of replicas."""

import json

import pytest

from shardtune.api_schemas.machines.hardware import FIRST_FIELDS
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.service.best import watch_staleness
from tests.support.service.scenarios import ASK, WORKLOAD, best, fields_of, in_threads, tune
from tests.support.service.simulated_worker import FINGERPRINT, SPEC, SimulatedWorker, failure

NEW = FINGERPRINT.model_copy(update={"driver": "560.1", "torch": "2.14.0"})
DEBOUNCE_S, GONE_S, LIVE_S = 300, 3600, 90


@pytest.fixture
def context(client):
    return client.app.state.context


@pytest.fixture
def case(client):
    """The key of what is served, where a test is marked `answered`."""
    return best(client)["target_key"]


def bring(client, name="sim", fingerprint=NEW):
    return SimulatedWorker(client, name=name, fingerprint=fingerprint).register()


def keep_alive(context, clock, seconds, *workers):
    """Time passes, the workers ask for work and return what they get, and the service looks."""
    for _ in range(int(seconds // 60)):
        clock.turn(60)
        for worker in workers:
            held = worker.lease()
            if held is not None:
                worker.report(held, failure(FailureKind.WORKER_LOST))
        watch_staleness.mark_stale_and_fresh(context)


def retunes(client):
    return client.get("/v1/retunes").json()["retunes"]


def staleness_of(client, key):
    decisions = client.get("/v1/best:history", params={"target_key": key}).json()["decisions"]
    return [entry for entry in decisions if entry["action"] in ("stale", "fresh")]


@pytest.mark.answered
def test_a_change_is_seen_at_once_and_causes_one_retune_after_the_debounce(client, context, clock, case):
    worker = bring(client)
    in_threads(lambda _: watch_staleness.mark_stale_and_fresh(context), range(4))
    best_answer = best(client)
    assert (best_answer["freshness"], best_answer["changed_fields"]) == ("stale", ["torch"]), (
        "the driver was unknown before"
    )
    assert best_answer["confidence"]["level"] == "low" and "torch" in best_answer["confidence"]["reasons"][0]
    assert (retunes(client), staleness_of(client, case)) == ([], [])
    keep_alive(context, clock, DEBOUNCE_S, worker)
    in_threads(lambda _: watch_staleness.mark_stale_and_fresh(context), range(4))
    (retune,) = retunes(client)
    assert (retune["target_key"], retune["cause"], fields_of(retune)) == (case, "fingerprint", ["torch"])
    (event,) = staleness_of(client, case)
    assert (event["action"], event["note"], event["by"]) == ("stale", "torch 2.13.0 → 2.14.0", "service")
    keep_alive(context, clock, 3 * DEBOUNCE_S, worker)
    assert len(retunes(client)) == len(staleness_of(client, case)) == 1


@pytest.mark.answered
def test_a_stale_answer_is_near_enough_only_for_low_confidence(client, context, case):
    near = ASK | {"workload": json.dumps(WORKLOAD | {"global_batch": 16})}
    assert best(client, **near)["confidence"]["level"] == "medium"
    bring(client)
    watch_staleness.mark_stale_and_fresh(context)
    rejected = client.get("/v1/best", params=near).json()
    assert rejected["code"] == "unknown_best" and "lowest_confidence=low returns its" in rejected["detail"]
    low = best(client, **near | {"lowest_confidence": "low"})
    assert (low["match"], low["freshness"], low["confidence"]["level"]) == ("nearest", "stale", "low")
    exact = best(client)
    assert (exact["freshness"], exact["confidence"]["level"]) == ("stale", "low"), "nothing is nearer to its own target"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_variable_that_was_set_on_the_worker_makes_stale_by_its_name(client, context, case):
    bring(client, fingerprint=FINGERPRINT.model_copy(update={"environment": ("MALLOC_TRIM_THRESHOLD_=131072",)}))
    watch_staleness.mark_stale_and_fresh(context)
    best_answer = best(client)
    assert (best_answer["freshness"], best_answer["changed_fields"]) == (
        "stale",
        ["environment.MALLOC_TRIM_THRESHOLD_"],
    )
    assert "environment.MALLOC_TRIM_THRESHOLD_" in client.get("/").text
    shown = client.get("/workers").text
    assert "MALLOC_TRIM_THRESHOLD_=131072" in shown and "unset → 131072" in shown


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_change_that_rolls_over_five_workers_is_one_event(client, context, clock, case):
    fleet = [bring(client, f"node-{n}", FINGERPRINT) for n in range(5)]
    bring(client, "sim", FINGERPRINT)
    clock.turn(GONE_S + 60)
    for n in range(5):
        keep_alive(context, clock, 60, *fleet)
        fleet[n] = bring(client, f"node-{n}")
        watch_staleness.mark_stale_and_fresh(context)
        assert best(client)["freshness"] == ("stale" if n == 4 else "fresh")
    keep_alive(context, clock, 2 * DEBOUNCE_S, *fleet)
    assert len(retunes(client)) == len(staleness_of(client, case)) == 1


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_worker_that_comes_back_as_it_was_within_the_debounce_causes_nothing(client, context, clock, case):
    worker = bring(client)
    keep_alive(context, clock, DEBOUNCE_S - 60, worker)
    worker = bring(client, fingerprint=FINGERPRINT)
    keep_alive(context, clock, 2 * DEBOUNCE_S, worker)
    assert (best(client)["freshness"], retunes(client), staleness_of(client, case)) == ("fresh", [], [])


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_change_taken_back_later_withdraws_the_retune_that_waits(client, context, clock, case):
    worker = bring(client)
    keep_alive(context, clock, DEBOUNCE_S + 60, worker)
    worker = bring(client, fingerprint=FINGERPRINT)
    keep_alive(context, clock, 60, worker)
    (retune,) = retunes(client)
    assert (retune["outcome"], retune["reason"]) == ("skipped", "the machines have changed back")
    assert [entry["action"] for entry in staleness_of(client, case)] == ["fresh", "stale"]
    assert best(client)["freshness"] == "fresh"


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_silent_worker_holds_its_fingerprint_for_a_while_and_nobody_alive_says_nothing(client, context, clock, case):
    other = bring(client, "other")
    keep_alive(context, clock, GONE_S - 60, other)
    assert best(client)["freshness"] == "fresh"
    keep_alive(context, clock, 120, other)
    assert best(client)["freshness"] == "stale"
    clock.turn(10 * GONE_S)
    watch_staleness.mark_stale_and_fresh(context)
    assert retunes(client) == []


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_an_answer_on_the_new_fingerprint_spares_the_old_one_its_retune(client, context, clock, case):
    clock.turn(60)
    tune(client, fingerprint=NEW)
    worker = bring(client)
    keep_alive(context, clock, 2 * DEBOUNCE_S, worker)
    assert best(client)["freshness"] == "fresh" and retunes(client) == []
    assert best(client, target_key=case)["freshness"] == "stale"
    newest = best(client)["target_key"]
    worker = bring(client, fingerprint=NEW.model_copy(update={"torch": "2.15.0"}))
    keep_alive(context, clock, 2 * DEBOUNCE_S, worker)
    assert [retune["target_key"] for retune in retunes(client)] == [newest]


@pytest.mark.answered
@pytest.mark.wide_on_postgres
def test_a_patch_of_the_kernel_lowers_the_confidence_and_no_more(client, context, clock, case):
    worker = bring(client, fingerprint=FINGERPRINT.model_copy(update={"kernel": "6.1-22"}))
    keep_alive(context, clock, 2 * DEBOUNCE_S, worker)
    best_answer = best(client)
    assert (best_answer["freshness"], best_answer["changed_fields"]) == ("fresh", ["kernel"])
    assert best_answer["confidence"]["level"] == "medium" and "kernel" in best_answer["confidence"]["reasons"][0]
    assert retunes(client) == []


@pytest.mark.wide_on_postgres
def test_a_worker_of_the_release_before_upgrades_without_making_anything_stale(client, context, clock):
    old = FINGERPRINT.first_version()
    offered = SimulatedWorker(client, fingerprint=old).inventory.model_dump(mode="json")
    offered["fingerprint"] = {name: offered["fingerprint"][name] for name in FIRST_FIELDS}
    SimulatedWorker(client).introduce(inventory=offered).raise_for_status()
    study_id = tune(client, fingerprint=old)
    half = client.post("/v1/studies", json=SPEC | {"model": "gpt2"}).json()["study_id"]
    worker = SimulatedWorker(client, fingerprint=old).register()
    worker.do(worker.lease())
    changed = FINGERPRINT.model_copy(update={"cpu_topology": "1 socket, 2 cores", "cpu_max_mhz": 3000})
    worker = bring(client, fingerprint=changed)
    keep_alive(context, clock, 2 * DEBOUNCE_S, worker)
    assert (best(client)["freshness"], best(client)["study_id"], retunes(client)) == ("fresh", study_id, [])
    worker.work()
    assert client.get(f"/v1/studies/{half}").json()["state"] == "complete", "its runs compare with the earlier ones"
