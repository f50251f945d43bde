"""Routes of fingerprints (hardware and software versions of workers)."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.machines.fingerprints import FingerprintDetail, FingerprintPage
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.process.context import ContextDep
from shardtune.service.workers import fingerprint_history

router = APIRouter(prefix="/v1/fingerprints", tags=["fingerprints"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("", responses=problems("invalid_page_token"))
def list_fingerprints(
    context: ContextDep,
    worker: Annotated[
        str | None, Query(max_length=200, description="Name or id of a worker that had the fingerprint.")
    ] = None,
    current: Annotated[bool, Query(description="Only fingerprints that a worker has now.")] = False,
    limit: LimitParam = 50,
    page_token: PageTokenParam = None,
) -> FingerprintPage:
    """List fingerprints (hardware and software that workers reported), each with the workers that had it, when, and
    what changed. Newest first.
    """
    return fingerprint_history.list_fingerprints(context, worker, current, page_token, limit)


@router.get("/{fingerprint_id}", responses=problems("unknown_fingerprint"))
def read_fingerprint(context: ContextDep, fingerprint_id: str) -> FingerprintDetail:
    """Read one fingerprint (hardware and software versions), the workers that had it, and the recommendations that were
    measured under it.
    """
    return fingerprint_history.read(context, fingerprint_id)
