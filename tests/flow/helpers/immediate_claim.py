"""Claims of a worker that does not wait, without HTTP."""

from shardtune.api_schemas.trials.leases import Lease, LeaseRequest
from shardtune.service.leasing import claim
from shardtune.service.process.context import Context


def grant(context: Context, request: LeaseRequest) -> Lease | None:
    """The worker's live lease, else a waiting run, else a new trial; None when there is none now."""
    entry = claim.record_request(context, request)
    actual = entry if isinstance(entry, Lease) else claim.claim(context, request)
    return actual if isinstance(actual, Lease) else None
