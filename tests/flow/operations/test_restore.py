"""Restoring a backup: whole or not at all, and without bringing revoked keys back."""

import sqlite3

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import inspect

from shardtune.db.backup import backup, connection_arguments, password_environment
from shardtune.db.restore import restore
from shardtune.db.session import Database, make_engine, parse_url
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.foreign_revisions import at_revision
from tests.support.service.simulated_worker import SPEC, SimulatedWorker


def client_of(url, clock):
    settings = Settings(database_url=url)
    context = Context(Database(url), settings, clock)
    app = create_app(context=context)
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1)), context


def create_key(client, name, admin=None):
    headers = {"authorization": f"Bearer {admin}"} if admin else {}
    answer = client.post("/v1/keys", json={"name": name, "scopes": ["admin"]}, headers=headers)
    return answer.raise_for_status().json()


@pytest.fixture
def lived(database_url, clock, tmp_path):
    """Database with a study, a backup of it, and what happened after: a key revoked, another made, the study deleted."""
    client, context = client_of(database_url, clock)
    SimulatedWorker(client).register()
    admin = create_key(client, "admin")
    bearer = {"authorization": f"Bearer {admin['secret']}"}
    leaked = create_key(client, "leaked", admin["secret"])
    answer = client.post("/v1/studies", json=SPEC, headers=bearer)
    assert answer.is_success, answer.text
    study = answer.json()
    backup(database_url, tmp_path / "copy")
    client.post(f"/v1/keys/{leaked['key']['key_id']}:revoke", headers=bearer).raise_for_status()
    later = create_key(client, "later", admin["secret"])
    client.post(f"/v1/studies/{study['study_id']}:cancel", headers=bearer).raise_for_status()
    context.db.close()
    return {"copy": tmp_path / "copy", "admin": admin, "leaked": leaked, "later": later, "study": study["study_id"]}


def status_with(client, key):
    return client.get("/v1/studies", headers={"authorization": f"Bearer {key['secret']}"}).status_code


def test_a_key_revoked_since_the_backup_stays_revoked(database_url, clock, lived, tmp_path):
    outcome = restore(database_url, lived["copy"], tmp_path / "former")
    assert outcome.revoked_again == ("leaked",) and outcome.valid_keys == ("admin",)
    client, context = client_of(database_url, clock)
    assert [status_with(client, lived[name]) for name in ("admin", "leaked", "later")] == [200, 401, 401]
    bearer = {"authorization": f"Bearer {lived['admin']['secret']}"}
    assert client.get(f"/v1/studies/{lived['study']}", headers=bearer).json()["state"] == "running"
    context.db.close()


def test_the_replaced_contents_are_kept_and_can_be_restored(database_url, clock, lived, tmp_path):
    restore(database_url, lived["copy"], tmp_path / "former")
    outcome = restore(database_url, tmp_path / "former", tmp_path / "again")
    assert outcome.valid_keys == ("admin", "later")


def test_a_backup_that_cannot_be_read_changes_nothing(database_url, clock, lived, tmp_path):
    damaged = tmp_path / "damaged"
    for content in (b"", b"no backup", lived["copy"].read_bytes()[:20_000]):
        damaged.write_bytes(content)
        with pytest.raises(ValueError, match=r"backup \(.*damaged\)"):
            restore(database_url, damaged, tmp_path / "former")
    with pytest.raises(ValueError, match="is no file"):
        restore(database_url, tmp_path / "absent", tmp_path / "former")
    assert not (tmp_path / "former").exists()
    client, context = client_of(database_url, clock)
    assert status_with(client, lived["later"]) == 200
    context.db.close()


@pytest.mark.parametrize(
    ("empty_database_url", "database_url"),
    [("sqlite", "sqlite"), pytest.param("postgres", "postgres", marks=pytest.mark.postgres)],
    indirect=True,
)
def test_an_empty_database_takes_a_backup(empty_database_url, database_url, lived, tmp_path):
    outcome = restore(empty_database_url, lived["copy"], tmp_path / "former")
    assert outcome.former is None and outcome.valid_keys == ("admin", "leaked")
    engine = make_engine(empty_database_url)
    assert "studies" in inspect(engine).get_table_names()
    engine.dispose()


def test_a_damaged_sqlite_file_is_moved_aside(sqlite_url, tmp_path, clock):
    backup(sqlite_url, tmp_path / "copy")
    database = tmp_path / "shardtune.sqlite3"
    database.write_bytes(b"\0" * 50_000)
    outcome = restore(sqlite_url, tmp_path / "copy", tmp_path / "former")
    assert outcome.former is not None and outcome.former.read_bytes() == b"\0" * 50_000
    assert sqlite3.connect(database).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_damaged_file_still_says_which_keys_were_revoked(sqlite_url, clock, tmp_path):
    client, context = client_of(sqlite_url, clock)
    admin = create_key(client, "admin")
    leaked = create_key(client, "leaked", admin["secret"])
    backup(sqlite_url, tmp_path / "copy")
    bearer = {"authorization": f"Bearer {admin['secret']}"}
    client.post(f"/v1/keys/{leaked['key']['key_id']}:revoke", headers=bearer).raise_for_status()
    context.db.close()
    file = tmp_path / "shardtune.sqlite3"
    connection = sqlite3.connect(file)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ix_api_keys_holder_id'").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(file.read_bytes())
    content[(page - 1) * size + 8 : page * size] = b"\xff" * (size - 8)
    file.write_bytes(content)
    outcome = restore(sqlite_url, tmp_path / "copy", tmp_path / "former")
    assert outcome.revoked_again == ("leaked",) and outcome.valid_keys == ("admin",)


@pytest.mark.parametrize(
    "url",
    ["postgresql+psycopg://u:SECRET@h/db", "postgresql+psycopg://u@h/db?password=SECRET&sslpassword=SECRET&port=6"],
)
def test_no_password_is_an_argument_of_a_program(url):
    parsed = parse_url(url)
    arguments = " ".join(connection_arguments(parsed))
    assert "SECRET" not in arguments and "***" not in arguments and "u@h" in arguments
    assert password_environment(parsed)["PGPASSWORD"] == "SECRET"


def test_a_backup_of_a_version_that_this_one_does_not_know_is_rejected(sqlite_url, tmp_path):
    at_revision(sqlite_url, "0099_later")
    backup(sqlite_url, tmp_path / "copy")
    with pytest.raises(ValueError, match="0099_later, which this version"):
        restore(f"sqlite:///{tmp_path}/other.sqlite3", tmp_path / "copy", tmp_path / "former")


# SQLite replaces its contents in one transaction, beside other connections.
@pytest.mark.parametrize("database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_postgres_database_in_use_is_rejected(database_url, lived, tmp_path):
    other = Database(database_url)
    with other.read_connection(), pytest.raises(ValueError, match="stop the service's replicas"):
        restore(database_url, lived["copy"], tmp_path / "former")
    other.close()
