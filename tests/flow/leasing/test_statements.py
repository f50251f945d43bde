"""SQL statements per request of a worker: half of the claims, and the reports on average, send at most a dozen."""

from tests.support.service.statement_counts import count

MOST = 12


def test_claims_and_reports_send_few_statements(database_url):
    counts = count(database_url, replicas=1)
    assert counts["leases"]["count"] == counts["report"]["count"] > 20
    assert (counts["leases"]["median"] <= MOST, counts["report"]["median"] <= MOST) == (True, True), counts
    # A fingerprint of which little is known is learnt anew at each claim of a search, which reads what was measured.
    assert (counts["leases"]["mean"] <= MOST + 2, counts["report"]["mean"] <= MOST) == (True, True), counts
    assert counts["heartbeat"]["max"] <= 3, counts
