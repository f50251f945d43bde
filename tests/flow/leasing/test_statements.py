"""What a worker's requests cost the database, counted: half of the claims, and the reports on average, send at most a dozen."""

from tests.support.service.statement_counts import count

MOST = 12


def test_claims_and_reports_send_few_statements(database_url):
    seen = count(database_url, replicas=1)
    assert seen["leases"]["count"] == seen["report"]["count"] > 20
    assert (seen["leases"]["median"] <= MOST, seen["report"]["median"] <= MOST) == (True, True), seen
    # A fingerprint of which little is known is learnt anew at each claim of a search, which reads what was measured.
    assert (seen["leases"]["mean"] <= MOST + 2, seen["report"]["mean"] <= MOST) == (True, True), seen
    assert seen["heartbeat"]["max"] <= 3, seen
