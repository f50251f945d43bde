"""What a worker's requests cost the database, counted: a claim and a report send at most a dozen statements."""

from tests.support.statements import count

MOST = 12


def test_claims_and_reports_send_few_statements(database_url):
    seen = count(database_url, replicas=1)
    assert seen["leases"]["count"] == seen["report"]["count"] > 20
    assert (seen["leases"]["median"] <= MOST, seen["report"]["median"] <= MOST) == (True, True), seen
    assert (seen["leases"]["mean"] <= MOST + 1, seen["report"]["mean"] <= MOST + 1) == (True, True), seen
    assert seen["heartbeat"]["max"] <= 3, seen
