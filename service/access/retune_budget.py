"""Budget of retuning: GPU-seconds per day for all projects together (SHARDTUNE_RETUNE_GPU_SECONDS_PER_DAY) and for each
project.

Every project that has recommendations has a share in the fleet's budget (retune_shares). A day runs from midnight to midnight in the limit's time zone. Attempts of retunes and canaries that ended in it count,
and every running one with its likely cost. A run that would not fit is not leased.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas import times
from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.retuning.retunes import RetunePolicy
from shardtune.db.queries import best, costs, keys
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.access import retune_shares
from shardtune.service.process.context import Context

# Later retunes are expected to cost what the last one did.
_CHALLENGE_FRACTION = 1 / 3
"""Fraction of a study's cost that the first retune (repeated measurement of a recommendation) of its result is
expected to cost.
"""
NOTHING_PROMISED: Mapping[str, float] = {}
_RUN_S = 60.0
"""Seconds that a run is expected to take if no similar run was measured before."""


@dataclass(frozen=True)
class BudgetLimit:
    """Limit on the GPU-seconds that may be used per day for measuring recommendations again (retunes and canaries)."""

    owner: str
    gpu_seconds: float
    timezone: str
    project_id: str | None
    """Id of the project to which the limit applies; None if it applies to all projects together."""


@dataclass(frozen=True)
class Account:
    """Limit on the GPU-seconds that retunes and canaries may use per day, and the GPU-seconds of it that are left
    today. Both kinds of studies run recommended configurations again.
    """

    limit: BudgetLimit
    gpu_seconds_left: float
    promised: float = 0.0
    """Part of `gpu_seconds_left` that the retunes (repeated measurements of recommendations) which run now will
    probably use.
    """
    is_shared: bool = False
    """Whether the limit is divided among several projects."""

    @property
    def explanation(self) -> str:
        """Text that describes a limit on retuning (measuring recommendations again) and what is left of it. It is
        part of the reason why a retune waits.
        """
        limit = self.limit
        return (
            f"{limit.owner} may use {limit.gpu_seconds:g} GPU-seconds a day for retuning ({limit.timezone}), "
            f"of which {max(0.0, self.gpu_seconds_left):.0f} are left"
            + (" for this project, beside the shares of others" if self.is_shared else "")
        )


def policy_of(session: Session, project_id: str) -> RetunePolicy:
    """Policy for measuring recommendations again that a project has set, or the default policy if it has set none."""
    row = keys.project(session, project_id)
    return (row.retuning if row is not None else None) or RetunePolicy()


def lock_ledger(session: Session) -> None:
    """Lock the row of the retuning budget until the transaction ends, so that two replicas cannot both spend the same
    rest of the day's budget. The budget limits how much is spent on measuring recommendations again.
    """
    # Every spender waits here, so that two replicas cannot both spend what is left. One row for the fleet: the default
    # project's, which always exists (note [lock order]).
    keys.lock_project(session, DEFAULT_PROJECT)


def budgets_of(
    context: Context, session: Session, project_id: str, promised: Mapping[str, float] = NOTHING_PROMISED
) -> list[Account]:
    """Limits that apply to a project's retunes (repeated measurements of recommendations), each with the GPU-seconds
    left today; the limit with the least left comes first.

    `promised`: GPU-seconds that the running retunes of each project will probably still use.
    """
    now, settings, policy = context.now(), context.settings, policy_of(session, project_id)
    limits = []
    if math.isfinite(settings.retune_gpu_seconds_per_day):
        limits.append(BudgetLimit("the fleet", settings.retune_gpu_seconds_per_day, settings.retune_timezone, None))
    if policy.gpu_seconds_per_day is not None:
        limits.append(BudgetLimit(f"project {project_id}", policy.gpu_seconds_per_day, policy.timezone, project_id))
    # Runs that execute now count with their likely cost: counting only ended attempts would let every replica start
    # runs until the first one ends.
    running_costs = [
        (run.project_id, max(run.seconds * run.ranks, likely_run_cost(session, run.study_id, run.ranks)))
        for run in (costs.in_flight(session, now) if limits else ())
    ]
    accounts = [_account(session, limit, project_id, running_costs, promised, now) for limit in limits]
    return sorted(accounts, key=lambda account: account.gpu_seconds_left)


def _account(
    session: Session,
    limit: BudgetLimit,
    project_id: str,
    running_costs: Sequence[tuple[str, float]],
    promised: Mapping[str, float],
    now: datetime,
) -> Account:
    begins = times.midnight(limit.timezone, now)
    used = defaultdict(float, costs.spent_since(session, limit.project_id, begins))
    for project, cost in running_costs:
        used[project] += cost
    later = {project: used[project] + promised.get(project, 0.0) for project in {*used, *promised}}
    entitled = {project_id, *([] if limit.project_id else best.projects_with_recommendation(session))}
    day_left = max(0.0, 1 - (now - begins) / timedelta(days=1))

    def left(use: Mapping[str, float]) -> float:
        if limit.project_id is not None:
            return limit.gpu_seconds - use.get(project_id, 0.0)
        return retune_shares.left_of_fleet(limit.gpu_seconds, use, project_id, entitled, day_left)

    return Account(limit, left(used), left(used) - left(later), is_shared=len(entitled) > 1)


def admits_run(context: Context, session: Session, study: StudyRow) -> bool:
    """Whether the budget left for the day covers the next run of a system study. System studies measure a
    recommendation again (retune) or check its speed (canary).
    """
    tightest = budgets_of(context, session, study.project_id)[:1]
    return all(
        account.gpu_seconds_left >= likely_run_cost(session, study.id, study.cluster.world_size) for account in tightest
    )


def likely_run_cost(session: Session, study_id: str, ranks: int) -> float:
    """GPU-seconds that one more run of a study may take: as many as the most expensive run of this study took, or of
    the study whose result it measures again.
    """
    of_study = costs.most_expensive_attempt(session, [study_id])
    origin = costs.tested_study(session, study_id)
    of_origin = costs.most_expensive_attempt(session, [origin]) if origin is not None else None
    return max(of_study or 0.0, of_origin or 0.0) or _RUN_S * ranks


def likely_cost(session: Session, row: RetuneRow) -> float:
    """GPU-seconds that a retune (repeated measurement of a recommendation) may take: the cost of the last retune of
    the same tuning target (model, workload, cluster), else a third of the cost of the search that found the
    configuration.
    """
    last = costs.last_retune_cost(session, row.project_id, row.target_key)
    if last is not None:
        return last
    origin = costs.incumbent_study(session, row.project_id, row.target_key)
    if origin is None:
        return 0.0
    cost, is_search = costs.study_cost(session, origin)
    return cost * _CHALLENGE_FRACTION if is_search else cost


def most_expensive_run(session: Session, row: RetuneRow) -> float:
    """GPU-seconds of the most expensive run of the study that found a recommended configuration; 0 if unknown."""
    origin = costs.incumbent_study(session, row.project_id, row.target_key)
    return (costs.most_expensive_attempt(session, [origin]) or 0.0) if origin is not None else 0.0
