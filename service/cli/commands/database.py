"""`shardtune db`: migrate and back up the database of a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AsJson, StateDir

if TYPE_CHECKING:
    from shardtune.db import backup, session
    from shardtune.service.cli import local_stack
else:
    backup, session = LazyModule("shardtune.db.backup"), LazyModule("shardtune.db.session")
    local_stack = LazyModule("shardtune.service.cli.local_stack")

app = typer.Typer(help="Migrate or back up the database.", no_args_is_help=True)


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
