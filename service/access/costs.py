"""Report the GPU-seconds that projects used, by month and cause, and their price if the operator has set one."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from shardtune.api_schemas.retuning.costs import Cost, CostCause, CostReport, price_of
from shardtune.api_schemas.studies.study_state import StudyPurpose
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import costs
from shardtune.db.queries.costs import AttemptCosts
from shardtune.service.http.errors import NotFound
from shardtune.service.process.context import Context

MONTHS = 12
"""Number of months that a cost report covers by default."""


def report(context: Context, project_id: str | None = None, months: int = MONTHS) -> CostReport:
    """Cost report of all projects of the sender, or of one of them, for the present month and the months before it.

    Raises:
        NotFound: the project is not the sender's.
    """
    if not context.principal.sees(project_id):
        raise NotFound("unknown_project", f"project ({project_id}) is not one of the key's projects; leave it out")
    now = context.now()
    with context.db.read() as session:
        rows = costs.costs_since(session, project_id or context.principal.project_id, months_ago(now, months - 1))
    price = context.settings.price_per_gpu_hour
    return CostReport(
        price_per_gpu_hour=price, currency=context.settings.currency, costs=tuple(_cost_rows(rows, price))
    )


def months_ago(moment: datetime, months: int) -> datetime:
    """First moment (in UTC) of the month that lies `months` months before a given moment; 0 gives the moment's own
    month.
    """
    in_utc = moment.astimezone(UTC)
    years, month = divmod(in_utc.year * 12 + in_utc.month - 1 - months, 12)
    return datetime(years, month + 1, 1, tzinfo=UTC)


def _cost_rows(rows: Sequence[AttemptCosts], price: float | None) -> Iterator[Cost]:
    by_month_project_cause: defaultdict[tuple[str, str, CostCause], list[AttemptCosts]] = defaultdict(list)
    for row in rows:
        by_month_project_cause[row.month, row.project_id, _cause(row)].append(row)
    # Sorted twice, since sorting is stable: newest month first, and by project and cause within a month.
    for key in sorted(sorted(by_month_project_cause, key=lambda key: key[1:]), key=lambda key: key[0], reverse=True):
        month, project_id, cause = key
        gpu_seconds = sum(row.gpu_seconds for row in by_month_project_cause[key])
        yield Cost(
            project_id=project_id,
            month=month,
            cause=cause,
            attempts=sum(row.attempts for row in by_month_project_cause[key]),
            gpu_seconds=gpu_seconds,
            price=price_of(gpu_seconds, price),
        )


_AFTER_SEARCH = (
    RunPurpose.VALIDATION,
    RunPurpose.RESUME_CHECK,
    RunPurpose.SUSTAINED,
    RunPurpose.RECIPE,
    RunPurpose.REHEARSAL,
)
"""Purposes of runs that a study executes after its search, such as validation runs. Cost reports count them under
"final comparison".
"""


def _cause(row: AttemptCosts) -> CostCause:
    if row.study_purpose is StudyPurpose.CANARY:
        return CostCause.CANARY
    if row.system_kind == SystemStudyKind.CHALLENGE:
        return CostCause.CHALLENGE
    if row.run_purpose is RunPurpose.TRACE:
        return CostCause.DIAGNOSIS
    return CostCause.FINAL_COMPARISON if row.run_purpose in _AFTER_SEARCH else CostCause.SEARCH
