"""Queries on webhooks and their messages."""

import secrets
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.notifications.webhooks import DeliveryState
from shardtune.db.tables.webhooks import DeliveryRow, WebhookRow

ANY_ENABLED = select(WebhookRow.id).where(WebhookRow.is_enabled).exists()
"""SQL column that says whether any webhook is enabled. It is added to other queries, because usually no webhook is
enabled and a query for webhooks is then saved."""
_ENABLED = "webhooks that are told of events"
_ALL_ENABLED = select(WebhookRow).where(WebhookRow.is_enabled)
_WITH_DUE = (
    select(DeliveryRow.webhook_id, WebhookRow.project_id)
    .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
    .where(DeliveryRow.state == DeliveryState.WAITING, DeliveryRow.next_at <= bindparam("now"))
    .group_by(DeliveryRow.webhook_id, WebhookRow.project_id)
    .order_by(func.min(DeliveryRow.next_at), DeliveryRow.webhook_id)
)


def get(session: Session, webhook_id: str) -> WebhookRow | None:
    return session.get(WebhookRow, webhook_id)


def lock(session: Session, webhook_id: str) -> WebhookRow | None:
    """Return one webhook, locked until the transaction ends. A transaction must lock the webhook before it locks
    messages of this webhook."""
    query = select(WebhookRow).where(WebhookRow.id == webhook_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def all_webhooks(session: Session) -> Sequence[WebhookRow]:
    """Return all webhooks, oldest first."""
    return session.scalars(select(WebhookRow).order_by(WebhookRow.created_at, WebhookRow.id)).all()


def count(session: Session, project_id: str | None) -> int:
    """Return the number of webhooks of a project. With None, count the webhooks that receive events of every project."""
    query = select(func.count()).select_from(WebhookRow).where(WebhookRow.project_id.is_not_distinct_from(project_id))
    return session.scalars(query).one()


def enabled(session: Session) -> Sequence[WebhookRow]:
    """Return the webhooks that are enabled; a transaction reads them only once."""
    if _ENABLED not in session.info:
        session.info[_ENABLED] = session.scalars(_ALL_ENABLED).all()
    rows: Sequence[WebhookRow] = session.info[_ENABLED]
    return rows


def note_whether_any(session: Session, is_any: bool) -> None:
    """Remember for this transaction whether any webhook is enabled, as the column `ANY_ENABLED` of another query
    said. If none is, `enabled` sends no query."""
    if not is_any:
        session.info.setdefault(_ENABLED, ())


def lock_existing(session: Session, webhook_ids: Collection[str]) -> frozenset[str]:
    """Lock those of the given webhooks that still exist until the transaction ends, and return their ids."""
    query = select(WebhookRow.id).where(WebhookRow.id.in_(webhook_ids)).order_by(WebhookRow.id)
    return frozenset(session.scalars(query.with_for_update(read=True, key_share=True)))


def add_delivery(session: Session, webhook: WebhookRow, kind: str, body: str, now: datetime) -> DeliveryRow:
    """Add a webhook message that is due immediately."""
    row = DeliveryRow(
        id=f"msg_{secrets.token_hex(12)}",
        webhook=webhook,
        type=kind,
        body=body,
        state=DeliveryState.WAITING,
        tries=0,
        created_at=now,
        next_at=now,
    )
    session.add(row)
    return row


def webhooks_with_due_messages(session: Session, now: datetime) -> Sequence[tuple[str, str | None]]:
    """Return the webhooks that have due messages, and their projects; those whose messages have waited longest come
    first. Nothing is locked."""
    return [
        (webhook_id, project_id) for webhook_id, project_id in session.connection().execute(_WITH_DUE, {"now": now})
    ]


def due_messages(session: Session, webhook_id: str, now: datetime, limit: int) -> Sequence[DeliveryRow]:
    """Return a webhook's due messages, locked until the transaction ends; messages locked by another replica are
    skipped."""
    query = (
        select(DeliveryRow)
        .where(
            DeliveryRow.webhook_id == webhook_id,
            DeliveryRow.state == DeliveryState.WAITING,
            DeliveryRow.next_at <= now,
        )
        .order_by(DeliveryRow.next_at)
        .limit(limit)
        .options(joinedload(DeliveryRow.webhook, innerjoin=True))
        .with_for_update(skip_locked=True, key_share=True, of=DeliveryRow)
    )
    return session.scalars(query).all()


def has_delivered_since(session: Session, webhook_id: str, moment: datetime) -> bool:
    """Whether the webhook's receiver has accepted any message since a given moment."""
    query = select(DeliveryRow.id).where(
        DeliveryRow.webhook_id == webhook_id,
        DeliveryRow.state == DeliveryState.DELIVERED,
        DeliveryRow.finished_at >= moment,
    )
    return session.scalars(query.limit(1)).first() is not None


def delivery(session: Session, delivery_id: str) -> DeliveryRow | None:
    """Return one webhook message, locked until the transaction ends."""
    query = select(DeliveryRow).where(DeliveryRow.id == delivery_id).with_for_update(key_share=True)
    return session.scalars(query).one_or_none()


def deliveries(session: Session, webhook_id: str, limit: int) -> Sequence[DeliveryRow]:
    """Return the newest messages sent, or to be sent, to a webhook."""
    return session.scalars(
        select(DeliveryRow)
        .where(DeliveryRow.webhook_id == webhook_id)
        .order_by(DeliveryRow.created_at.desc(), DeliveryRow.id)
        .limit(limit)
    ).all()


def delivery_list(
    session: Session, webhook_id: str, state: str, offset: int, limit: int
) -> tuple[Sequence[DeliveryRow], int]:
    """Return the messages of a webhook that have a state (an empty state matches all), newest first, starting at
    `offset`, and the total number of such messages."""
    chosen = [DeliveryRow.webhook_id == webhook_id, *([DeliveryRow.state == state] if state else [])]
    total = session.scalar(select(func.count()).select_from(DeliveryRow).where(*chosen)) or 0
    query = select(DeliveryRow).where(*chosen).order_by(DeliveryRow.created_at.desc(), DeliveryRow.id)
    return session.scalars(query.offset(offset).limit(limit)).all(), total


def disable(session: Session, webhook_id: str, reason: str, now: datetime) -> None:
    """Disable a webhook and abandon its waiting messages."""
    session.execute(
        update(WebhookRow).where(WebhookRow.id == webhook_id).values(is_enabled=False, disabled_reason=reason)
    )
    given_up = func.coalesce(DeliveryRow.error + "; given up: ", "") + "the webhook was disabled"
    session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.webhook_id == webhook_id, DeliveryRow.state == DeliveryState.WAITING)
        .values(state=DeliveryState.FAILED, error=given_up, finished_at=now, next_at=None)
    )
