"""Costs of projects by month and cause: sums equal those of the attempts, and a key sees its own project."""

import pytest

from shardtune.service.access.costs import months_ago
from tests.flow.helpers.retuning_lab import Lab
from tests.support.service.local_client import local_client
from tests.support.service.page_reader import page
from tests.support.service.scenarios import answered_study, bearer, make_key
from tests.support.service.simulated_worker import SPEC, SimulatedWorker


def costs(client, **params):
    return client.get("/v1/costs", params=params).json()["costs"]


@pytest.mark.answered
def test_each_attempt_is_in_one_month_and_one_cause(client, clock):
    lab, study_id = Lab(client), answered_study(client)
    clock.turn(31 * 86_400)
    retune, _ = lab.retune()
    actual = {(row["month"], row["cause"]): row for row in costs(client)}
    assert list(actual) == [("2026-02", "challenge"), ("2026-01", "final_comparison"), ("2026-01", "search")]
    study = client.get(f"/v1/studies/{study_id}").json()
    january = sum(row["gpu_seconds"] for (month, _), row in actual.items() if month == "2026-01")
    assert january == pytest.approx(study["gpu_seconds"])
    assert actual["2026-02", "challenge"]["gpu_seconds"] == pytest.approx(retune["gpu_seconds"])
    assert [row["month"] for row in costs(client, months=1)] == ["2026-02"]
    line = 'shardtune_project_gpu_seconds{cause="challenge",month="2026-02",project="default"}'
    assert line in client.get("/metrics").text


@pytest.mark.answered
def test_a_price_is_told_where_the_operator_names_one(quick_client, context, spare_app):
    assert all(row["price"] is None for row in costs(quick_client))
    settings = context.settings.model_copy(update={"price_per_gpu_hour": 2.5, "currency": "EUR"})
    object.__setattr__(context, "settings", settings)
    report = quick_client.get("/v1/costs").json()
    assert (report["price_per_gpu_hour"], report["currency"]) == (2.5, "EUR")
    for row in report["costs"]:
        assert row["price"] == pytest.approx(row["gpu_seconds"] / 3600 * 2.5, abs=1e-4)
    assert 'shardtune_price_per_gpu_hour{currency="EUR"} 2.5' in quick_client.get("/metrics").text
    assert "EUR" in page(quick_client, "/costs")


def test_a_project_is_told_its_own_costs(quick_client):
    operator = local_client(quick_client.app, headers=bearer(make_key(quick_client, "admin")))
    worker = SimulatedWorker(operator).register()
    projects = {}
    for name in "ab":
        projects[name] = local_client(quick_client.app, headers=bearer(make_key(operator, "admin", project=name)))
        projects[name].post("/v1/studies", json=SPEC | {"budget": {"max_trials": 1}}).raise_for_status()
    worker.work()
    assert {row["project_id"] for row in costs(operator)} == {"a", "b"}
    assert {row["project_id"] for row in costs(projects["a"])} == {"a"}
    assert {row["project_id"] for row in costs(operator, project="b")} == {"b"}
    assert projects["a"].get("/v1/costs", params={"project": "b"}).json()["code"] == "unknown_project"


@pytest.mark.answered
def test_a_retune_says_what_it_is_about(quick_client):
    lab = Lab(quick_client)
    retune, _ = lab.retune()
    assert (retune["model"], retune["workload"]["global_batch"]) == ("llama-tiny", SPEC["workload"]["global_batch"])
    assert retune["changes"] == [{"field": "kernel", "was": "old", "now": "new", "effect": "stale"}]


def test_months_begin_in_utc(clock):
    assert [months_ago(clock.moment, n).isoformat()[:10] for n in (0, 1, 13)] == [
        "2026-01-01",
        "2025-12-01",
        "2024-12-01",
    ]
