"""`shardtune db`: the database that a service uses."""

import json
from pathlib import Path
from typing import Annotated

import typer

from shardtune.db.backup import backup
from shardtune.db.session import parse_url, upgrade, without_secrets
from shardtune.service.cli.options import AsJson, StateDir
from shardtune.service.cli.stack import database_errors, database_url

app = typer.Typer(help="The database.", no_args_is_help=True)


@app.command("upgrade")
def db_upgrade(state_dir: StateDir = Path(".shardtune"), as_json: AsJson = False) -> None:
    """Bring the database (SHARDTUNE_DATABASE_URL, else the state directory's) to this version."""
    url = database_url(state_dir)
    with database_errors():
        shown = without_secrets(parse_url(url))
        upgrade(url)
    print(json.dumps({"database_url": shown, "migrated": True}) if as_json else f"{shown} is at this version")


@app.command("backup")
def db_backup(
    out: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Copy the database while it is in use (SQLite: online backup; Postgres: pg_dump in its custom format)."""
    url = database_url(state_dir)
    with database_errors():
        size = backup(url, out)
    print(json.dumps({"file": str(out), "bytes": size}) if as_json else f"{out}: {size / 2**20:.1f} MiB")
