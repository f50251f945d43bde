"""Readiness names the remedy for a database that this version of the service cannot use."""

from tests.support.foreign_revisions import at_revision


def test_a_database_of_an_unreleased_revision_is_not_ready_and_its_remedy_is_named(client, database_url):
    at_revision(database_url, "0025")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_not_migrated")
    detail = answer.json()["detail"]
    assert "the database is at revision 0025 of an unreleased version" in detail and "shardtune db upgrade" in detail
    # Readiness needs no key: it shows neither the path of the file nor the address of the server.
    assert "/" not in detail.replace("`shardtune db upgrade`", "")
