"""Canaries: one worker a period runs what is served; who is slow alone is at fault, and a slow case is measured anew."""

import pytest
from sqlalchemy import select

from shardtune.db.queries import canaries
from shardtune.db.tables.canaries import CanaryRow
from shardtune.service.canaries import judge
from tests.flow.helpers.fleet import DAY_S, Fleet
from tests.flow.helpers.retuning_lab import CHANGED
from tests.support.service.scenarios import best, in_threads


@pytest.mark.answered(worker="sim-0")
@pytest.mark.wide_on_postgres
def test_a_canary_a_day_goes_from_worker_to_worker_and_costs_one_run(client, clock):
    fleet = Fleet(client, clock)
    assert fleet.day() == [("watch", "sim-0", "normal")]
    assert fleet.day()[-1] == ("watch", "sim-1", "normal")
    fleet.slow = {"sim-0": 0.98, "sim-1": 1.02}
    assert fleet.day()[-1] == ("watch", "sim-0", "normal")
    listed = client.get("/v1/canaries", params={"limit": 2}).json()
    assert [(row["worker"], row["change"]) for row in listed["canaries"]] == [
        ("sim-0", pytest.approx(0.98)),
        ("sim-1", pytest.approx(1.0)),
    ]
    other_canaries = client.get("/v1/canaries", params={"page_token": listed["next_page_token"]}).json()["canaries"]
    assert [row["verdict"] for row in other_canaries] == ["normal"]
    assert fleet.runs() == [1.0, 1.0, 1.0] and client.get("/v1/retunes").json()["retunes"] == []


@pytest.mark.answered(worker="sim-0")
@pytest.mark.wide_on_postgres
def test_a_study_of_the_services_own_is_not_extended_but_its_clone_may_be(client, clock):
    fleet = Fleet(client, clock)
    fleet.day()
    next_run = next(study for study in client.get("/v1/studies").json()["studies"] if study["system_study"])
    rejected = client.post(f"/v1/studies/{next_run['study_id']}:extend", json={"add_trials": 2})
    assert (rejected.status_code, rejected.json()["code"]) == (409, "made_by_service")
    assert "belongs to a canary" in rejected.json()["detail"] and "clone it" in rejected.json()["detail"]
    assert "Extend search" not in client.get(f"/studies/{next_run['study_id']}").text
    clone = client.post(f"/v1/studies/{next_run['study_id']}:clone", json={}).json()
    assert clone["system_study"] is None
    client.post(f"/v1/studies/{clone['study_id']}:extend", json={"add_trials": 2}).raise_for_status()


@pytest.mark.answered(worker="sim-0")
def test_a_canary_that_another_replica_decided_meanwhile_is_left_alone(client, clock, monkeypatch):
    fleet = Fleet(client, clock)
    study_id = best(client)["study_id"]
    fleet.slow = {"sim-0": 0.8, "sim-1": 0.8}
    fleet.day()
    # As a replica read them before the first judged them.
    monkeypatch.setattr(canaries, "open_canaries", lambda session: session.scalars(select(CanaryRow)).all())
    assert judge.judge_and_begin(fleet.context) == 0
    assert fleet.events(study_id) == ["best.regression"]


@pytest.mark.answered(worker="sim-0")
def test_drift_on_every_worker_is_a_regression_and_asks_for_a_retune(client, clock):
    fleet = Fleet(client, clock)
    key, study_id = best(client)["target_key"], best(client)["study_id"]
    fleet.slow = {"sim-0": 0.8, "sim-1": 0.8}
    assert fleet.day() == [("watch", "sim-0", "drift"), ("peer", "sim-1", "drift")]
    (requested,) = client.get("/v1/retunes").json()["retunes"]
    assert (requested["cause"], requested["target_key"], requested["state"]) == ("drift", key, "queued")
    assert fleet.events(study_id) == ["best.regression"]
    (reported, *_) = client.get("/v1/best:history", params={"target_key": key}).json()["decisions"]
    assert (
        reported["action"] == "regression"
        and "0.80 times the measured speed, the fastest of 5 runs" in reported["note"]
    )
    assert fleet.conditions() == {"sim-0": None, "sim-1": None}
    assert fleet.day()[2:] == [], "while the retune waits, no more canaries"


@pytest.mark.answered(worker="sim-0")
@pytest.mark.wide_on_postgres
def test_drift_on_one_worker_is_that_workers_fault(client, clock):
    fleet = Fleet(client, clock)
    fleet.slow["sim-0"] = 0.8
    assert fleet.day() == [("watch", "sim-0", "worker"), ("peer", "sim-1", "normal")]
    assert client.get("/v1/retunes").json()["retunes"] == []
    assert "slower than it was" in fleet.conditions()["sim-0"] and fleet.conditions()["sim-1"] is None
    assert client.get("/workers", headers={"accept": "text/html"}).text.count("slower than it was") == 1
    fleet.slow["sim-0"] = 1.0
    assert fleet.day()[-1] == ("watch", "sim-0", "normal") and fleet.conditions()["sim-0"] is None


@pytest.mark.answered(worker="sim-0")
def test_a_single_worker_has_no_peer_and_drift_belongs_to_the_target(quick_client, clock):
    fleet = Fleet(quick_client, clock, count=1)
    fleet.slow["sim-0"] = 0.8
    assert fleet.day() == [("watch", "sim-0", "drift")]
    assert fleet.runs() == [5.0], "before it is believed it is run five times"


@pytest.mark.answered(worker="sim-0")
@pytest.mark.wide_on_postgres
def test_what_a_cheap_retune_kept_goes_by_what_was_normal_before(client, clock):
    fleet = Fleet(client, clock)
    fleet.far_ahead()
    fleet.kept()
    assert best(client)["best"]["runs"] == 1 and fleet.look() == [], "nothing is lacking"
    fleet.everybody_is(0.8)
    assert fleet.day() == [("watch", "sim-0", "drift"), ("peer", "sim-1", "drift")]


@pytest.mark.answered(worker="sim-0")
def test_a_decline_cannot_hide_in_retunes_that_follow_each_other(quick_client, clock):
    fleet = Fleet(quick_client, clock, count=1)
    fleet.far_ahead()
    for speed in (0.95, 0.9, 0.85):
        fleet.everybody_is(speed)
        fleet.kept("schedule")
        verdicts = [verdict for _, _, verdict in fleet.day()]
    assert verdicts == ["normal", "normal", "drift"]


@pytest.mark.answered(worker="sim-0")
@pytest.mark.wide_on_postgres
def test_after_drift_the_retune_and_its_first_canary_make_what_is_normal(client, clock):
    fleet = Fleet(client, clock)
    fleet.far_ahead()
    fleet.everybody_is(0.8)
    fleet.day()
    fleet.kept("drift")
    assert fleet.look()[2:] == [("watch", "sim-0", "normal")] and fleet.runs()[0] == 1.0
    assert fleet.look()[3:] == [], "one is enough"
    assert fleet.day()[3:] == [("watch", "sim-1", "normal")] and fleet.runs()[0] == 1.0
    fleet.everybody_is(0.8 * 0.8)
    assert [verdict for _, _, verdict in fleet.day()[4:]] == ["drift", "drift"]


@pytest.mark.answered(worker="sim-0")
def test_after_a_change_of_the_fingerprint_what_is_normal_is_made_anew(quick_client, clock):
    fleet = Fleet(quick_client, clock)
    fleet.far_ahead()
    assert fleet.day() == [("watch", "sim-0", "normal")]
    clock.turn(60)
    fleet.join(CHANGED)
    fleet.everybody_is(1.3)
    fleet.kept("fingerprint")
    assert fleet.look()[1:] == [("watch", "sim-0", "normal")] and fleet.runs()[0] == 1.0
    fleet.everybody_is(1.0)
    assert [verdict for _, _, verdict in fleet.day()[2:]] == ["drift", "drift"]


@pytest.mark.answered(worker="sim-0")
def test_a_worker_that_is_gone_ends_its_canary(quick_client, clock):
    fleet = Fleet(quick_client, clock)
    clock.turn(DAY_S)
    for worker in fleet.workers:
        worker.register()
    fleet.watch()
    clock.turn(600)
    fleet.watch()
    assert fleet.day()[0] == ("watch", "sim-0", "unmeasured")


@pytest.mark.answered(worker="sim-0")
def test_a_canary_whose_worker_is_drained_before_its_run_goes_to_the_next_one(quick_client, clock):
    """It waited for the drained worker, which still asks for work, and the target had no canary meanwhile."""
    fleet = Fleet(quick_client, clock)
    clock.turn(DAY_S)
    for worker in fleet.workers:
        worker.register()
    fleet.watch()
    drained = next(row for row in quick_client.get("/v1/workers").json()["workers"] if row["name"] == "sim-0")
    quick_client.post(f"/v1/workers/{drained['worker_id']}:drain").raise_for_status()
    fleet.watch()
    assert fleet.day() == [("watch", "sim-0", "unmeasured"), ("watch", "sim-1", "normal")]


@pytest.mark.answered(worker="sim-0")
def test_of_replicas_that_send_a_canary_at_once_one_does(client, clock):
    fleet = Fleet(client, clock)
    clock.turn(DAY_S)
    for worker in fleet.workers:
        worker.register()
    in_threads(lambda _: fleet.watch(), range(4))
    with fleet.context.db.read() as session:
        assert len(session.scalars(select(CanaryRow)).all()) == 1


@pytest.mark.parametrize("value", ["0", "59", "x"])
def test_a_period_shorter_than_a_minute_is_rejected(monkeypatch, value):
    from pydantic import ValidationError

    from shardtune.service.settings import Settings

    monkeypatch.setenv("SHARDTUNE_CANARY_PERIOD_S", value)
    with pytest.raises(ValidationError, match="canary_period_s"):
        Settings()
