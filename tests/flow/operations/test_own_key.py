"""A command starts a service for itself: API keys of its state directory do not lock the command out."""

import httpx
import pytest

from shardtune.api_schemas.access.credentials import hash_of
from shardtune.service.cli import local_stack
from shardtune.service.process.context import Context
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import SPEC, SimulatedWorker


@pytest.fixture
def own_service(open_service, sqlite_url):
    """The service of a command whose secret is `own secret`, with one key in its database."""
    client = open_service(sqlite_url)
    before = client.app.state.context
    client.app.state.context = Context(before.db, before.settings, before.now, own_key_hash=hash_of("own secret"))
    client.headers["authorization"] = "Bearer own secret"
    make_key(client, "admin")
    return client


def test_the_client_of_the_command_may_do_everything_beside_keys(own_service):
    SimulatedWorker(own_service).register()
    created = own_service.post("/v1/studies", json=SPEC)
    assert created.status_code == 201, created.text
    assert own_service.get("/v1/keys").status_code == 200


def test_other_requests_need_a_key_as_before(own_service):
    for headers in ({"authorization": ""}, {"authorization": "Bearer made up"}):
        assert own_service.get("/v1/studies", headers=headers).status_code == 401
    reader = make_key(own_service, "studies:read")
    assert own_service.get("/v1/studies", headers=bearer(reader)).status_code == 200
    assert own_service.get("/v1/keys", headers=bearer(reader)).status_code == 403


def test_the_commands_worker_takes_over_the_name_that_a_key_registered(own_service):
    worker = SimulatedWorker(own_service, name="desk")
    key = bearer(make_key(own_service, "workers:lease"))
    own_service.headers["authorization"] = key["authorization"]
    worker.register()
    own_service.headers["authorization"] = "Bearer own secret"
    SimulatedWorker(own_service, name="desk").register()
    assert len(own_service.get("/v1/workers").json()["workers"]) == 1


def test_keys_of_the_folder_do_not_lock_its_commands_out(run, tmp_path, monkeypatch):
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    code, _ = run("keys", "create", "--name", "a", "--scope", "admin", "--state-dir", str(tmp_path))
    assert code == 0
    with local_stack.local_service(tmp_path) as client:
        assert client.studies() == []
        answer = httpx.get(f"{client.base_url}/v1/studies", trust_env=False)
        assert (answer.status_code, answer.json()["code"]) == (401, "key_required")
        worker = local_stack.LocalWorker(client, tmp_path, 2, None)
        environment = worker._child._environment
        assert environment["SHARDTUNE_API_KEY"] == client.api_key and client.api_key not in worker._child.command


def test_the_environments_key_decides_in_a_database_that_users_share(monkeypatch):
    monkeypatch.setenv("SHARDTUNE_DATABASE_URL", "postgresql://db/shared")
    monkeypatch.setenv("SHARDTUNE_API_KEY", "mine")
    assert local_stack._own_key() is None
    monkeypatch.delenv("SHARDTUNE_API_KEY")
    assert len(local_stack._own_key() or "") > 40
