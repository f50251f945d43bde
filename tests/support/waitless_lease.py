"""What a worker is given that does not wait, without HTTP around it."""

from shardtune.api_schemas.leases import Lease, LeaseRequest
from shardtune.service.leasing import choose_study
from shardtune.service.process.context import Context


def grant(context: Context, request: LeaseRequest) -> Lease | None:
    """Its live lease, else a run that waits, else a new trial; None when there is none now."""
    entry = choose_study.check_in(context, request)
    found = entry if isinstance(entry, Lease) else choose_study.claim(context, request)
    return found if isinstance(found, Lease) else None
