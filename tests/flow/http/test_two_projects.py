"""Every route and page, as a project asks it that shares the service with another: nothing of the other's is in any
answer, no id of its is known from one that never was, and nothing it owns is changed.

The addresses are read from the application: a new one takes part by itself, and one with a name that nobody gives a value
here fails.
"""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import MetaData, Table, inspect, select

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.db.session import Database
from tests.flow.helpers.route_table import Address, addresses
from tests.flow.http.two_projects import OWN, WORD, Ids, Owned, TwoProjects, populate, two_projects
from tests.support.service.page_reader import HTML
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

OPEN = {"/login", "/logout"}
"""Request headers without a session."""
SCHEDULE = {"name": "changed", "trigger": "manual"}
HELD_STUDY = {"protocol_version": PROTOCOL_VERSION, "session": "of-nobody", "attempt": 1}
BODIES = {
    "/v1/schedules/{schedule_id}": {"json": SCHEDULE},
    "/v1/studies/{study_id}:extend": {"json": {"add_trials": 1}},
    "/v1/runs/{run_id}/heartbeat": {"json": HELD_STUDY},
    "/v1/runs/{run_id}/unreadable": {"json": HELD_STUDY | {"message": "unreadable"}},
    "/v1/runs/{run_id}/report": {
        "json": HELD_STUDY | {"gpu_seconds": 1.0, "failure": {"kind": "crash", "message": "x"}}
    },
    "/v1/runs/{run_id}/traces/{rank}": {
        "content": gzip.compress(b"{}"),
        "headers": {
            "content-type": "application/octet-stream",
            "shardtune-session": "of-nobody",
            "shardtune-attempt": "1",
        },
    },
    "/v1/best:plan": {"json": {"planned_gpu_hours": 1}},
    "/v1/projects/{project_id}": {"json": {}},
    "/studies/{study_id}/extend": {"data": {"add_trials": "1"}},
}
"""Bodies for rules that only a valid body reaches."""
VOLATILE = {"page_sessions", "api_keys", "idempotent_requests", "alembic_version"}


@pytest.fixture(scope="module")
def populated(sqlite_after: Callable[..., Path]) -> tuple[Path, Owned]:
    """Database in which both projects have measured, and what each of them owns in it."""
    owned: list[Owned] = []

    def by_both_projects(client: TestClient) -> None:
        owned.append(populate(client))

    return sqlite_after(by_both_projects), owned[0]


@pytest.fixture
def sqlite_start(populated: tuple[Path, Owned]) -> Path:
    return populated[0]


@pytest.fixture
def both(quick_client, populated: tuple[Path, Owned]) -> TwoProjects:
    return two_projects(quick_client, populated[1])


def ask(both: TwoProjects, address: Address, ids: Ids, **sent):
    path = re.sub(r"\{(\w+)\}", lambda name: ids[name[1]], address.path)
    if not address.is_page:
        return both.api.request(address.method, path, **sent)
    if address.is_unsafe:
        sent["data"] = both.token | sent.get("data", {})
    return both.pages.request(address.method, path, headers=HTML, follow_redirects=False, **sent)


def asked_of(address: Address, ids: Ids) -> dict[str, str]:
    """Every parameter that the route takes and that can name something of a project's."""
    recorded = {"pick": ids["study_id"], "which": "0", "project": ids["project_id"], "worker": ids["worker_id"]} | ids
    return {name: recorded[name] for name in address.query if name in recorded}


def response_text(answer) -> str:
    return f"{answer.status_code} {sorted(answer.headers.items())} {answer.text}"


def test_no_answer_has_a_word_of_the_other_project(quick_client, both):
    leaks, served = [], 0
    for address in addresses(quick_client.app):
        if address.is_unsafe or address.path in OPEN:
            continue
        for sent in ({}, {"params": asked_of(address, both.own)}):
            answer = ask(both, address, both.own, **sent)
            served += answer.is_success
            leaks += [(address.path, word) for word in both.secrets if word in response_text(answer)]
    stream = both.api.get(f"/v1/studies/{both.own['study_id']}/events", headers={"accept": "text/event-stream"})
    leaks += [("events", word) for word in both.secrets if word in response_text(stream)]
    assert leaks == []
    assert served > 60 and both.api.get("/metrics").status_code == 403


def test_no_id_of_the_other_project_is_known_and_nothing_of_it_is_changed(quick_client, both):
    never = {
        name: value if len(value) < 6 or name == "name" else f"{value[:-3]}zzz" for name, value in both.theirs.items()
    }
    never |= {"project_id": "nobodys-bird", "study_id": f"{WORD}.nothing", "target_key": "0" * 32}
    before, different, actual = rows(quick_client.app.state.context.db), [], []
    for address in addresses(quick_client.app):
        if address.path in OPEN or not ("{" in address.path or asked_of(address, both.theirs)):
            continue
        answers = []
        for ids in (both.theirs, never):
            answer = ask(both, address, ids, params=asked_of(address, ids), **BODIES.get(address.path, {}))
            answers.append(without(response_text(answer), ids))
        if answers[0] != answers[1]:
            different.append((address.method, address.path, *answers))
        actual += [(address.method, address.path, word) for word in both.secrets if word in answers[0]]
    assert (different, actual) == ([], [])
    assert rows(quick_client.app.state.context.db) == before


def test_a_worker_of_one_project_learns_of_no_run_of_the_other(both):
    """Its session is valid, so that nothing but the run's project decides the answer."""
    worker = SimulatedWorker(both.api, name="curious").register()
    for path, body in BODIES.items():
        if not path.startswith("/v1/runs/"):
            continue
        is_trace = "json" not in body
        part, session = ("headers", "shardtune-session") if is_trace else ("json", "session")
        sent = body | {part: body[part] | {session: worker.session}}
        address = Address("PUT" if is_trace else "POST", path, (), (), is_page=False)
        for ids in (both.theirs, both.theirs | {"run_id": "run-0123456789abcdef"}):
            answer = ask(both, address, ids, **sent)
            assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run"), (path, answer.text)


def without(text: str, ids: Ids) -> str:
    """An answer without the ids that it repeats of the question, and what is another each time."""
    for value in sorted(ids.values(), key=len, reverse=True):
        text = text.replace(value, "…") if len(value) > 5 else text
    return re.sub(r"'content-length', '\d+'|value=\"[\w.-]{20,}\"", "", text)


def rows(database: Database) -> dict[str, list[str]]:
    """Everything that is stored, but what any request changes."""
    names = set(inspect(database.engine).get_table_names()) - VOLATILE
    with database.read() as session:
        tables = [Table(name, MetaData(), autoload_with=session.connection()) for name in sorted(names)]
        return {table.name: sorted(map(str, session.execute(select(table)).all())) for table in tables}


def test_names_and_ids_are_of_their_project(both):
    """A name that one project took is free to the other, and reveals nothing; a request that names the other project is
    rejected."""
    study = both.api.post("/v1/studies", json=SPEC, params={"study_id": WORD})
    assert (study.status_code, study.json()["study_id"]) == (201, f"{OWN}.{WORD}")
    worker = SimulatedWorker(both.api, name=f"{WORD}-1").register()
    assert worker.lease() is not None
    made_up = both.api.post("/v1/studies", json=SPEC, params={"study_id": "study-0123456789ab"})
    assert made_up.json()["code"] == "invalid_request" and "generates" in made_up.json()["detail"]
    study = both.api.post("/v1/webhooks", json={"url": "https://x.example/", "study_id": both.theirs["study_id"]})
    assert study.status_code == 422 and "does not exist" in study.text
    key = both.api.post("/v1/keys", json={"name": "x", "scopes": ["admin"], "project_id": WORD})
    assert key.json()["code"] == "scope_missing"
    for path, body in (("/v1/studies", SPEC), ("/v1/schedules", SCHEDULE), ("/v1/best:resolve", {"study": SPEC})):
        answer = both.api.post(path, json=body, params={"project": WORD})
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_project"), path
