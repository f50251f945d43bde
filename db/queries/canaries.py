"""Queries on canaries (speed checks of recommended configurations)."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.retuning.canaries import CanaryVerdict
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow


def fresh_targets(session: Session) -> Sequence[TuningTargetRow]:
    """Return tuning targets (model, workload, cluster) whose recommendation is considered fresh (hardware and
    software unchanged), most used first."""
    query = select(TuningTargetRow).where(
        TuningTargetRow.recommended_id.is_not(None),
        TuningTargetRow.superseded_by.is_(None),
        TuningTargetRow.freshness == Freshness.FRESH,
    )
    return session.scalars(
        query.order_by(TuningTargetRow.uses.desc(), TuningTargetRow.target_key).options(
            joinedload(TuningTargetRow.recommended)
        )
    ).all()


def open_canaries(session: Session) -> Sequence[CanaryRow]:
    """Return the canaries (speed checks of recommended configurations) that have no final verdict yet, oldest first."""
    query = select(CanaryRow).where(CanaryRow.verdict.is_(None) | (CanaryRow.verdict == CanaryVerdict.SLOW))
    return session.scalars(query.order_by(CanaryRow.created_at, CanaryRow.id)).all()


def lock(session: Session, canary_id: str) -> CanaryRow:
    """Return one canary (speed check of a recommended configuration), locked until the transaction ends, as it is
    stored now."""
    query = select(CanaryRow).where(CanaryRow.id == canary_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one()


def of_target(session: Session, project_id: str, target_key: str) -> Sequence[CanaryRow]:
    """Return all canaries (speed checks of the recommended configuration) of a tuning target in chronological order."""
    query = select(CanaryRow).where(CanaryRow.project_id == project_id, CanaryRow.target_key == target_key)
    return session.scalars(query.order_by(CanaryRow.created_at, CanaryRow.tick, CanaryRow.id)).all()


def measured_canaries(
    session: Session, project_id: str, target_keys: Collection[str], at_most: int
) -> Sequence[CanaryRow]:
    """Return the canaries (speed checks of the recommended configuration) of the given tuning targets that have a
    measured speed, newest first."""
    query = select(CanaryRow).where(
        CanaryRow.project_id == project_id,
        CanaryRow.target_key.in_(target_keys),
        CanaryRow.tokens_per_s_per_gpu.is_not(None),
    )
    return session.scalars(query.order_by(CanaryRow.created_at.desc()).limit(at_most)).all()


def page(
    session: Session, project_id: str | None, target_key: str | None, after: tuple[datetime, str] | None, limit: int
) -> Sequence[CanaryRow]:
    """Return a page of canaries (speed checks of recommended configurations), newest first, starting behind `after`."""
    time, name = CanaryRow.created_at, CanaryRow.id
    query = select(CanaryRow).order_by(time.desc(), name.desc()).limit(limit).options(joinedload(CanaryRow.worker))
    if project_id is not None:
        query = query.where(CanaryRow.project_id == project_id)
    if target_key is not None:
        query = query.where(CanaryRow.target_key == target_key)
    if after is not None:
        query = query.where((time < after[0]) | ((time == after[0]) & (name < after[1])))
    return session.scalars(query).all()
