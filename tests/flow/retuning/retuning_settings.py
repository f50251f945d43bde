"""Settings of a service that retunes, and what a lease of it is for."""

from shardtune.db.queries import leases

A_DAY = 200.0
QUIET = {"sweep_s": 3600, "fingerprint_check_s": 3600, "canary_check_s": 3600, "retune_every_s": 3600}
"""The test takes the steps of the loops itself."""


def purpose_of(context, lease):
    with context.db.read() as session:
        return leases.get(session, lease.run_id).purpose
