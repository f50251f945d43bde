"""List canaries (repeated runs of recommended configurations)."""

from shardtune.api_schemas.retuning.canaries import Canary, CanaryPage
from shardtune.db.queries import canaries
from shardtune.db.tables.canaries import CanaryRow
from shardtune.service.http import paging
from shardtune.service.process.context import Context


def list_canaries(
    context: Context, target_key: str | None, token: str | None, limit: int, project_id: str | None
) -> CanaryPage:
    """Canaries (repeated runs of recommended configurations) of the projects visible to the sender, newest first."""
    if not context.principal.sees(project_id):
        return CanaryPage(canaries=())
    shown_project_id = project_id or context.principal.project_id
    filters = (shown_project_id, target_key)
    after = paging.parse_token(token, filters, paging.moment_and_id)
    with context.db.read() as session:
        rows = canaries.page(session, shown_project_id, target_key, after, limit + 1)
        page_rows, next_token = paging.split_page(
            rows, limit, filters, lambda row: [row.created_at.isoformat(), row.id]
        )
        return CanaryPage(canaries=tuple(map(_canary_view, page_rows)), next_page_token=next_token)


def _canary_view(row: CanaryRow) -> Canary:
    return Canary(
        canary_id=row.id,
        project_id=row.project_id,
        target_key=row.target_key,
        recommendation_id=row.recommendation_id,
        study_id=row.study_id,
        worker=row.worker.name,
        role=row.role,
        verdict=row.verdict,
        tokens_per_s_per_gpu=row.tokens_per_s_per_gpu,
        change=row.change,
        reason=row.reason,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
