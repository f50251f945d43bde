"""`shardtune db`: migrate, back up and restore the database of a service."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AsJson, StateDir

if TYPE_CHECKING:
    from shardtune.db import backup, restore, session
    from shardtune.service.cli import local_stack
else:
    backup, session = LazyModule("shardtune.db.backup"), LazyModule("shardtune.db.session")
    restore = LazyModule("shardtune.db.restore")
    local_stack = LazyModule("shardtune.service.cli.local_stack")

app = typer.Typer(help="Migrate, back up or restore the database.", no_args_is_help=True)


@app.command("upgrade")
def db_upgrade(state_dir: StateDir = Path(".shardtune"), as_json: AsJson = False) -> None:
    """Migrate the database (SHARDTUNE_DATABASE_URL, or the state directory's) to this version."""
    url = local_stack.database_url(state_dir)
    with local_stack.database_errors():
        # The URL may hold a password, and the output may end up in a CI log.
        shown = session.without_secrets(session.parse_url(url))
        session.upgrade(url)
    print(json.dumps({"database_url": shown, "migrated": True}) if as_json else f"{shown} is at this version")


@app.command("backup")
def db_backup(
    out: Annotated[Path, typer.Argument(help="File to write; it must not exist.")],
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Copy the database while it is in use (SQLite: online backup; PostgreSQL: pg_dump in its custom format)."""
    url = local_stack.database_url(state_dir)
    with local_stack.database_errors():
        size = backup.backup(url, out)
    print(json.dumps({"file": str(out), "bytes": size}) if as_json else f"{out}: {size / 2**20:.1f} MiB")


@app.command("restore")
def db_restore(
    source: Annotated[Path, typer.Argument(help="File that `shardtune db backup` wrote.")],
    yes: Annotated[bool, typer.Option("--yes", help="Replace the present contents without a question.")] = False,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Replace the database's contents by a backup, after a backup of the present contents. Stop the service first.

    API keys that were revoked since the backup stay revoked, and all browser sessions end.
    """
    url = local_stack.database_url(state_dir)
    with local_stack.database_errors():
        shown = session.without_secrets(session.parse_url(url))
        if not yes:
            typer.confirm(f"Replace everything in {shown} by {source}?", abort=True, err=True)
        former = Path(f"{source}.former-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        outcome = restore.restore(url, source, former)
    if as_json:
        former_file = str(outcome.former) if outcome.former else None
        print(
            json.dumps(
                {
                    "database_url": shown,
                    "former_contents": former_file,
                    "keys_revoked_again": outcome.revoked_again,
                    "valid_keys": outcome.valid_keys,
                }
            )
        )
        return
    print(f"{shown} has the contents of {source}")
    if outcome.former is not None:
        print(f"former contents: {outcome.former}")
    for label, names in (("revoked again", outcome.revoked_again), ("valid API keys", outcome.valid_keys)):
        print(f"{label}: {', '.join(names) or 'none'}")
