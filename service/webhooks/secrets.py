"""Secrets that sign webhook messages, derived from the operator's key and the webhook's id and never stored.

A database dump therefore holds no secret. Changing the key changes all secrets, so receivers then need new ones.
"""

import base64
import hashlib
import hmac
import os
import secrets
from datetime import datetime, timedelta
from pathlib import Path

from standardwebhooks import Webhook

from shardtune.db.session import parse_url
from shardtune.db.tables.webhooks import WebhookRow
from shardtune.service.http.errors import Conflict
from shardtune.service.settings import Settings

_OVERLAP = timedelta(hours=24)
"""Time after a rotation during which messages are signed with both secrets, so that receivers can change secrets
without losing a message.
"""


def master_key(settings: Settings) -> bytes:
    """Key from which the secrets of webhooks are derived, and which signs the confirmation codes for coding agents.
    It is the setting `SHARDTUNE_SECRET_KEY`, or is read from a key file beside a SQLite database, created on first
    use.

    Raises:
        Conflict: the database is not SQLite, and no key is set. Replicas of the service share no key file, so the key
            must be set.
    """
    if settings.secret_key is not None:
        return settings.secret_key.get_secret_value().encode()
    url = parse_url(settings.database_url)
    if url.get_backend_name() != "sqlite":
        raise Conflict(
            "no_secret_key",
            "webhooks are signed with secrets derived from a key of the operator's, and none is set; "
            "set SHARDTUNE_SECRET_KEY (32 characters or more, the same for every replica)",
        )
    assert url.database is not None
    return _key_file(Path(f"{url.database}.key"))


def _key_file(path: Path) -> bytes:
    # Written in full under another name first, then linked: a process that loses the race reads the winner's complete
    # file.
    own_path = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    if not path.exists():
        descriptor = os.open(own_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        try:
            os.link(own_path, path)
        except FileExistsError:
            pass
        finally:
            own_path.unlink()
    return path.read_bytes()


def secret_of(key: bytes, webhook_id: str, version: int) -> str:
    """Secret of a webhook in the form that the receiver gets: HMAC-SHA256 of the webhook's id and the secret's
    version.
    """
    derived = hmac.new(key, f"webhook {webhook_id} {version}".encode(), hashlib.sha256).digest()
    return "whsec_" + base64.b64encode(derived).decode()


def valid_versions(row: WebhookRow, now: datetime) -> tuple[int, ...]:
    """Versions of a webhook's secret with which messages are signed now: the present version, and after a rotation
    for some time also the former one.
    """
    if row.secret_version > 1 and row.rotated_at is not None and now < row.rotated_at + _OVERLAP:
        return row.secret_version, row.secret_version - 1
    return (row.secret_version,)


def signature(key: bytes, webhook_id: str, versions: tuple[int, ...], message_id: str, at: datetime, body: str) -> str:
    """Value of the `webhook-signature` header of a message."""
    # One signature per valid secret, separated by spaces, as standardwebhooks.com defines.
    signers = (Webhook(secret_of(key, webhook_id, version)) for version in versions)
    return " ".join(signer.sign(message_id, at, body) for signer in signers)
