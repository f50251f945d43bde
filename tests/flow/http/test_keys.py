"""API keys: who may do what, from the OpenAPI document itself; what a key sees; that its secret is nowhere."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text, update

from shardtune.api_schemas.access.keys import Scope
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.db.queries import studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.process.context import Context
from tests.support.service.local_client import local_client
from tests.support.service.scenarios import bearer, in_threads, make_key
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

OPEN_ROUTES = {"/healthz", "/readyz"}


@pytest.fixture
def admin(client):
    """A client that keeps sending the first key, after which nobody gets in without one."""
    client.headers["authorization"] = f"Bearer {make_key(client, 'admin')['secret']}"
    return client


@pytest.fixture
def quick_admin(quick_client):
    quick_client.headers["authorization"] = f"Bearer {make_key(quick_client, 'admin')['secret']}"
    return quick_client


def operations(client):
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_every_route_names_its_scopes_and_lets_in_nobody_else(quick_admin):
    keys = {scope: bearer(make_key(quick_admin, scope)) for scope in Scope}
    checked = 0
    for method, path, operation in list(operations(quick_admin)):
        if path in OPEN_ROUTES:
            assert "security" not in operation
            continue
        expected = {scope for entry in operation["security"] for scope in entry["api_key"]}
        assert expected
        url = path.replace("{action}", "pin").replace("{", "").replace("}", "")
        nobody = quick_admin.request(method, url, headers={"authorization": ""})
        assert (nobody.status_code, nobody.json()["code"]) == (401, "key_required"), (method, path)
        assert nobody.headers["www-authenticate"] == "Bearer"
        for scope, headers in keys.items():
            answer = quick_admin.request(method, url, headers=headers)
            is_rejected = answer.status_code == 403 and answer.json()["code"] == "scope_missing"
            assert is_rejected == (scope not in expected | {Scope.ADMIN}), (method, path, scope, answer.text)
            assert answer.status_code != 401 and answer.status_code < 500
            checked += 1
    assert checked >= 100


def test_every_error_of_every_route_is_documented_as_a_problem(quick_client):
    listed = list(operations(quick_client))
    assert len(listed) >= 50
    for method, path, operation in listed:
        errors = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        expected = {"500", "503"} | ({"401", "403", "429"} if "security" in operation else set())
        expected |= {"413", "422"} if "requestBody" in operation else set()
        assert expected <= errors.keys(), (method, path)
        for answer in errors.values():
            assert list(answer["content"]) == ["application/problem+json"] and "`" in answer["description"]
        if method == "post" and not path.endswith(("/leases", "/heartbeat", "/report", "/unreadable")):
            assert any(parameter["name"] == "Idempotency-Key" for parameter in operation["parameters"]), path


@pytest.mark.wide_on_postgres
def test_key_sees_only_its_project(admin):
    SimulatedWorker(admin).register()
    of_a, of_b = (make_key(admin, "studies:read", "studies:write", project=name) for name in ("a", "b"))
    study_id = admin.post("/v1/studies", json=SPEC, headers=bearer(of_a)).json()["study_id"]
    path = f"/v1/studies/{study_id}"
    assert admin.get(path, headers=bearer(of_a)).json()["project_id"] == "a"
    for method, url in [("GET", path), ("GET", f"{path}/trials"), ("POST", f"{path}:cancel"), ("GET", f"{path}/best")]:
        answer = admin.request(method, url, headers=bearer(of_b))
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_study"), url
    assert admin.get("/v1/studies", headers=bearer(of_b)).json()["studies"] == []
    assert admin.get("/v1/studies?project=a", headers=bearer(of_b)).json()["studies"] == []
    assert admin.post("/v1/studies?project=a", json=SPEC, headers=bearer(of_b)).json()["code"] == "unknown_project"
    assert [study["project_id"] for study in admin.get("/v1/studies").json()["studies"]] == ["a"]


def test_worker_of_a_project_runs_its_studies_only(quick_admin):
    of_a, of_b = (make_key(quick_admin, "workers:lease", project=name) for name in ("a", "b"))
    owner = make_key(quick_admin, "studies:write", project="b")
    mine = TestClient(quick_admin.app, base_url="http://127.0.0.1", headers=bearer(of_a))
    theirs = TestClient(quick_admin.app, base_url="http://127.0.0.1", headers=bearer(of_b))
    worker = SimulatedWorker(mine, name="a1").register()
    assert quick_admin.post("/v1/studies", json=SPEC, headers=bearer(owner)).json()["code"] == "no_worker"
    other = SimulatedWorker(theirs, name="b1").register()
    assert quick_admin.post("/v1/studies", json=SPEC, headers=bearer(owner)).status_code == 201
    assert worker.lease() is None
    lease = other.lease()
    assert lease is not None
    thief = SimulatedWorker(mine, name="b1").register()
    thief.session = other.session
    heartbeat = thief.post(f"/v1/runs/{lease.run_id}/heartbeat", {"attempt": 1})
    assert heartbeat.json()["code"] == "unknown_session"
    assert other.heartbeat(lease)["action"] == "continue"


def test_a_worker_s_name_belongs_to_the_key_that_registered_it(quick_admin, clock):
    """Registering under a worker's name closes that worker's leases."""
    created = [make_key(quick_admin, "workers:lease", project="a") for _ in range(3)]
    first, second, third = (
        SimulatedWorker(local_client(quick_admin.app, headers=bearer(key)), name="gpu-1") for key in created
    )
    before = first.register().session
    taken = second.introduce()
    assert (taken.status_code, taken.json()["code"]) == (409, "worker_name_taken")
    assert second.introduce(session=before).json()["code"] == "worker_name_taken"
    rotated = quick_admin.post(f"/v1/keys/{created[0]['key']['key_id']}:rotate", json={"grace_s": 60}).json()
    heir = SimulatedWorker(local_client(quick_admin.app, headers=bearer(rotated)), name="gpu-1").register()
    assert first.post("/v1/leases", {}).json()["code"] == "unknown_session"
    assert heir.session != before, "one holder, whichever of its secrets is sent"
    (recorded,) = quick_admin.get("/v1/workers").json()["workers"]
    quick_admin.post(f"/v1/workers/{recorded['worker_id']}:free").raise_for_status()
    second.register()
    assert third.introduce().json()["code"] == "worker_name_taken"
    quick_admin.post(f"/v1/keys/{created[1]['key']['key_id']}:revoke").raise_for_status()
    third.register()
    assert [row["worker_id"] for row in quick_admin.get("/v1/workers").json()["workers"]] == [recorded["worker_id"]]


def test_rotated_key_ends_after_its_grace_and_revoked_one_at_once(admin, clock):
    old = make_key(admin, "studies:read")
    key_id = old["key"]["key_id"]
    new = admin.post(f"/v1/keys/{key_id}:rotate", json={"grace_s": 60}).json()
    assert new["key"]["scopes"] == ["studies:read"] and new["secret"] != old["secret"]
    assert admin.get("/v1/studies", headers=bearer(old)).status_code == 200
    clock.turn(61)
    assert admin.get("/v1/studies", headers=bearer(old)).json()["code"] == "key_invalid"
    assert admin.post(f"/v1/keys/{key_id}:rotate").json()["code"] == "key_revoked"
    assert admin.get("/v1/studies", headers=bearer(new)).status_code == 200
    admin.post(f"/v1/keys/{new['key']['key_id']}:revoke")
    assert admin.get("/v1/studies", headers=bearer(new)).status_code == 401


def test_revoking_the_last_key_opens_nothing(quick_admin):
    (key,) = quick_admin.get("/v1/keys").json()["keys"]
    assert quick_admin.post(f"/v1/keys/{key['key_id']}:revoke").json()["is_valid"] is False
    assert quick_admin.get("/v1/studies").status_code == 401
    assert quick_admin.get("/v1/studies", headers={"authorization": ""}).status_code == 401


def test_administrator_of_a_project_stays_in_it(quick_admin):
    lead = bearer(make_key(quick_admin, "admin", project="a"))
    for body in ({"project_id": "b"}, {"project_id": None}):
        answer = quick_admin.post("/v1/keys", json={"name": "x", "scopes": ["admin"]} | body, headers=lead)
        assert answer.json()["code"] == "scope_missing"
    assert make_key(quick_admin, "studies:read", project="a", **lead)["key"]["project_id"] == "a"
    assert {key["project_id"] for key in quick_admin.get("/v1/keys", headers=lead).json()["keys"]} == {"a"}
    assert quick_admin.put("/v1/projects/a", json={}, headers=lead).status_code == 403
    assert quick_admin.get("/v1/projects/default", headers=lead).status_code == 404


def test_last_use_is_noted_sparsely(quick_admin, clock):
    def last_used():
        return quick_admin.get("/v1/keys").json()["keys"][0]["last_used_at"]

    first = last_used()
    clock.turn(60)
    assert last_used() == first is not None
    clock.turn(600)
    assert last_used() > first


def test_without_keys_only_this_machine_has_access(quick_client):
    app = quick_client.app
    for options in ({"client": ("10.0.0.7", 1)}, {"base_url": "http://evil.example"}):
        stranger = TestClient(app, **({"base_url": "http://127.0.0.1", "client": ("127.0.0.1", 1)} | options))
        assert stranger.get("/v1/studies").json()["code"] == "local_only"
        assert stranger.get("/healthz").status_code == 200


@pytest.mark.wide_on_postgres
def test_secret_is_in_its_first_answer_only(database_url, open_service, caplog):
    """The canary: neither logs nor the database nor any later answer has it."""
    client = open_service(database_url)
    caplog.set_level("DEBUG")
    body = {"name": "canary", "scopes": ["admin"]}
    named = {"Idempotency-Key": "make-canary"}
    secret = client.post("/v1/keys", json=body, headers=named).json()["secret"]
    headers = {"authorization": f"Bearer {secret}"}
    again = client.post("/v1/keys", json=body, headers=named | headers)
    assert again.status_code == 201 and again.headers["idempotency-replayed"] == "true"
    assert again.json()["secret"] is None
    texts = [caplog.text, again.text, client.get("/v1/keys", headers=headers).text]
    texts += [client.get("/v1/nope", headers=headers).text, everything(client.app.state.context)]
    assert [text.count(secret[20:]) for text in texts] == [0] * 5


def everything(context: Context) -> str:
    """All rows of all tables, as text."""
    with context.db.read() as session:
        tables = ("projects", "api_keys", "idempotent_requests", "studies", "workers", "runs")
        return str([session.execute(text(f"SELECT * FROM {table}")).all() for table in tables])


def test_a_project_that_many_create_at_once_is_one(admin):
    answers = []
    in_threads(lambda _: answers.append(admin.put("/v1/projects/new", json={"requires_approval": True})), range(6))
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    assert len({answer.headers["etag"] for answer in answers}) == 1


@pytest.mark.parametrize("tag", ["*", '"of-nothing"'])
def test_a_project_that_does_not_exist_has_no_version_to_match(quick_admin, tag):
    answer = quick_admin.put("/v1/projects/new", json={}, headers={"If-Match": tag})
    assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
    assert "does not exist" in answer.json()["detail"]
    assert quick_admin.get("/v1/projects/new").status_code == 404


@pytest.mark.wide_on_postgres
def test_quotas_of_a_project(admin, clock):
    SimulatedWorker(admin).register()
    key = bearer(make_key(admin, "studies:read", "studies:write", project="a"))
    admin.put("/v1/projects/a", json={"quotas": {"running_studies": 1, "requests_per_minute": 5}})
    first = admin.post("/v1/studies", json=SPEC, headers=key).json()["study_id"]
    rejected = admin.post("/v1/studies", json=SPEC, headers=key)
    assert (rejected.status_code, rejected.json()["code"]) == (429, "quota_running_studies")
    assert int(rejected.headers["retry-after"]) > 0
    admin.post(f"/v1/studies/{first}:pause", headers=key)
    assert admin.post("/v1/studies", json=SPEC, headers=key).status_code == 201
    assert admin.post(f"/v1/studies/{first}:resume", headers=key).json()["code"] == "quota_running_studies"
    over = admin.get("/v1/studies", headers=key)
    assert (over.json()["code"], over.headers["retry-after"]) == ("quota_requests", "60")
    clock.turn(60)
    assert admin.get("/v1/studies", headers=key).status_code == 200


def test_a_pause_between_the_read_of_a_resume_and_its_lock_evades_no_quota(quick_admin, monkeypatch):
    SimulatedWorker(quick_admin).register()
    quick_admin.put("/v1/projects/default", json={"quotas": {"running_studies": 1}})
    study_id = quick_admin.post("/v1/studies", json=SPEC).json()["study_id"]
    lock = studies.lock

    def paused_meanwhile(session, locked_id):
        session.execute(update(StudyRow).where(StudyRow.id == locked_id).values(state=StudyState.PAUSED))
        return lock(session, locked_id)

    with monkeypatch.context() as patch:
        patch.setattr(studies, "lock", paused_meanwhile)
        rejected = quick_admin.post(f"/v1/studies/{study_id}:resume")
    assert (rejected.status_code, rejected.json()["code"]) == (409, "study_changed")
    assert "read it again" in rejected.json()["detail"]
    # A study that runs already may be resumed without an effect, and needs no quota.
    assert quick_admin.post(f"/v1/studies/{study_id}:resume").json()["state"] == "running"


@pytest.mark.wide_on_postgres
def test_project_without_gpu_seconds_left_gets_no_run_until_midnight(admin, clock):
    worker = SimulatedWorker(admin).register()
    admin.put("/v1/projects/default", json={"quotas": {"gpu_seconds_per_day": 10}})
    admin.post("/v1/studies", json=SPEC)
    assert worker.work() == 2, "6 GPU-seconds each: the second run crosses the limit, and is the last"
    rejected = admin.post("/v1/studies", json=SPEC)
    assert (rejected.json()["code"], rejected.headers["retry-after"]) == ("quota_gpu_seconds", str(24 * 3600))
    clock.turn(24 * 3600)
    assert worker.lease() is not None


def test_runs_in_progress_count_towards_the_gpu_seconds_of_the_day(admin, clock):
    first, second = (SimulatedWorker(admin, name=name).register() for name in ("first", "second"))
    admin.put("/v1/projects/default", json={"quotas": {"gpu_seconds_per_day": 100}})
    admin.post("/v1/studies", json=SPEC)
    first.do(first.lease())
    running = first.lease()
    for _ in range(5):
        clock.turn(10)
        first.heartbeat(running)
    assert second.lease() is None, "50 seconds on two ranks are used up although nothing has ended"
    assert admin.post("/v1/studies", json=SPEC).json()["code"] == "quota_gpu_seconds"


def test_local_key_of_the_default_sees_the_default_project(quick_admin):
    """Objects created before the first key stay visible."""
    client = local_client(quick_admin.app, headers=bearer(make_key(quick_admin, "studies:read", project="default")))
    SimulatedWorker(quick_admin).register()
    study_id = quick_admin.post("/v1/studies", json=SPEC | {"cluster": CLUSTER.model_dump()}).json()["study_id"]
    assert client.get(f"/v1/studies/{study_id}").status_code == 200
