"""What retuning may spend: a limit a day for the fleet (SHARDTUNE_RETUNE_GPU_SECONDS_PER_DAY) and for each project.

A day runs from midnight to midnight of the limit's time zone. Against it count attempts of retunes and canaries that ended
in it, and, with what it is likely to take, every run that is executed now. A run that would not fit is not given out.
"""

import math
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas import times
from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.retuning.retunes import RetunePolicy
from shardtune.db.queries import costs, keys
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.process.context import Context

_CHALLENGE_SHARE = 1 / 3
"""Of the study that found an answer, for the first retune of it; later ones are expected to cost what the last one did."""
_RUN_S = 60.0
"""Of a run where nothing like it was ever run."""


@dataclass(frozen=True)
class BudgetLimit:
    """What may be spent in a day."""

    whose: str
    gpu_seconds: float
    timezone: str
    project_id: str | None
    """None: the fleet's."""


@dataclass(frozen=True)
class Account:
    """A limit, and what is left of it."""

    limit: BudgetLimit
    left: float

    @property
    def words(self) -> str:
        """For a reason."""
        limit = self.limit
        return (
            f"{limit.whose} may use {limit.gpu_seconds:g} GPU-seconds a day for retuning ({limit.timezone}), "
            f"of which {max(0.0, self.left):.0f} are left"
        )


def policy_of(session: Session, project_id: str) -> RetunePolicy:
    """What a project lets retuning do."""
    row = keys.project(session, project_id)
    return (row.retuning if row is not None else None) or RetunePolicy()


def hold(session: Session) -> None:
    """Whoever spends waits here, so that two replicas cannot both spend what is left (note [lock order])."""
    keys.lock_project(session, DEFAULT_PROJECT)


def accounts(context: Context, session: Session, project_id: str) -> list[Account]:
    """The limits that hold for a project's retunes; the tightest first."""
    now, settings, policy = context.now(), context.settings, policy_of(session, project_id)
    limits = []
    if math.isfinite(settings.retune_gpu_seconds_per_day):
        limits.append(BudgetLimit("the fleet", settings.retune_gpu_seconds_per_day, settings.retune_timezone, None))
    if policy.gpu_seconds_per_day is not None:
        limits.append(BudgetLimit(f"project {project_id}", policy.gpu_seconds_per_day, policy.timezone, project_id))
    flying = [
        (run.project_id, max(run.seconds * run.ranks, likely_run(session, run.study_id, run.ranks)))
        for run in (costs.in_flight(session, now) if limits else ())
    ]
    found = []
    for limit in limits:
        spent = costs.spent_since(session, limit.project_id, times.midnight(limit.timezone, now))
        spent += sum(cost for project, cost in flying if limit.project_id in (None, project))
        found.append(Account(limit, limit.gpu_seconds - spent))
    return sorted(found, key=lambda account: account.left)


def admits_run(context: Context, session: Session, study: StudyRow) -> bool:
    """Whether the next run of a study of the service's own fits into what is left of the day."""
    tight = accounts(context, session, study.project_id)[:1]
    return all(account.left >= likely_run(session, study.id, study.cluster.world_size) for account in tight)


def likely_run(session: Session, study_id: str, ranks: int) -> float:
    """GPU-seconds one more run may take: the dearest one of this study so far, else of the study it puts to the test."""
    own = costs.dearest_attempt(session, [study_id])
    origin = costs.origin_of(session, study_id)
    earlier = costs.dearest_attempt(session, [origin]) if origin is not None else None
    return max(own or 0.0, earlier or 0.0) or _RUN_S * ranks


def likely_cost(session: Session, row: RetuneRow) -> float:
    """GPU-seconds a retune may take: what the last one of its case did, else a third of the search that found its answer."""
    last = costs.last_cost(session, row.project_id, row.target_key)
    if last is not None:
        return last
    origin = costs.incumbent_study(session, row.project_id, row.target_key)
    if origin is None:
        return 0.0
    cost, is_search = costs.study_cost(session, origin)
    return cost * _CHALLENGE_SHARE if is_search else cost


def dearest_run(session: Session, row: RetuneRow) -> float:
    """GPU-seconds of the dearest run of the study that found what is served; 0 where nothing is known."""
    origin = costs.incumbent_study(session, row.project_id, row.target_key)
    return (costs.dearest_attempt(session, [origin]) or 0.0) if origin is not None else 0.0
