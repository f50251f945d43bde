"""`shardtune keys` and `shardtune projects`: manage both in the database itself; over HTTP the first key would need a key."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel, ValidationError

from shardtune.api_schemas.access.keys import (
    DEFAULT_PROJECT,
    ApiKey,
    KeyCreated,
    KeySpec,
    ProjectSpec,
    Quotas,
    RotateRequest,
    Scope,
)
from shardtune.api_schemas.retuning.retunes import RetunePolicy
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AsJson, StateDir

if TYPE_CHECKING:
    from shardtune.db import session as databases
    from shardtune.db.queries import keys as rows
    from shardtune.service.access import local_only, manage_keys, projects
    from shardtune.service.cli import environment, local_stack, study_file
    from shardtune.service.http import errors as service_errors
    from shardtune.service.process import context as contexts
else:
    databases = LazyModule("shardtune.db.session")
    rows = LazyModule("shardtune.db.queries.keys")
    local_only = LazyModule("shardtune.service.access.local_only")
    manage_keys, projects = (
        LazyModule("shardtune.service.access.manage_keys"),
        LazyModule("shardtune.service.access.projects"),
    )
    study_file = LazyModule("shardtune.service.cli.study_file")
    environment, local_stack = (
        LazyModule("shardtune.service.cli.environment"),
        LazyModule("shardtune.service.cli.local_stack"),
    )
    service_errors = LazyModule("shardtune.service.http.errors")
    contexts = LazyModule("shardtune.service.process.context")

app = typer.Typer(
    help="Manage API keys in the database of SHARDTUNE_DATABASE_URL or --state-dir.", no_args_is_help=True
)
projects_app = typer.Typer(help="Manage projects and their quotas in the same database.", no_args_is_help=True)

# The largest page of the API: the commands print one page.
_MOST_ROWS = 500

KeyId = Annotated[str, typer.Argument(help="Key id, as `keys list` shows it.")]
ExpiresInDays = Annotated[float | None, typer.Option(help="Days until the key expires (default: never).")]


def check_reach(url: str, address: str) -> None:
    """Raise an error if the service would listen to other machines while no API key exists, unless it requires keys.

    Raises:
        InputError: other machines could use the service without a key; the message holds the command that creates
        one.
    """
    # The bound address, not the option: a host name may resolve to any interface.
    if local_only.is_loopback(address):
        return
    with _context_of(url) as context, context.db.read() as session:
        if context.settings.require_keys or rows.any_key(session.connection()):
            return
    raise InputError(
        f"--host ({address}) is reachable from other machines, and without an API key anybody there could run "
        "studies; create one first with `shardtune keys create --name admin --scope admin --all-projects`, "
        "or listen on 127.0.0.1"
    )


@app.command("create")
def create(
    name: Annotated[str, typer.Option(help="Name; the history of decisions shows it.")],
    scope: Annotated[list[Scope], typer.Option(help="Scope of the key; repeat the option for several.")],
    project: Annotated[
        str, typer.Option(help="Project of the key; it is created if it does not exist.")
    ] = DEFAULT_PROJECT,
    all_projects: Annotated[
        bool, typer.Option("--all-projects", help="Give the key access to every project, in place of --project.")
    ] = False,
    expires_in_days: ExpiresInDays = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Create a key and print its secret, which is not stored and cannot be shown again."""
    try:
        spec = KeySpec(
            name=name,
            scopes=tuple(scope),
            project_id=None if all_projects else project,
            expires_in_days=expires_in_days,
        )
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    with _open_context(state_dir) as context:
        _print_secret(manage_keys.create(context, spec), as_json)


@app.command("list")
def list_keys(state_dir: StateDir = Path(".shardtune"), as_json: AsJson = False) -> None:
    """Print keys without their secrets, newest first."""
    with _open_context(state_dir) as context:
        page = manage_keys.list_keys(context, None, _MOST_ROWS)
    if as_json:
        print(page.model_dump_json())
    else:
        print(
            "\n".join(map(_key_line, page.keys))
            or "no keys: the service accepts requests of its own user on this machine only, without a key"
        )


@app.command("rotate")
def rotate(
    key_id: KeyId,
    grace_s: Annotated[float, typer.Option(min=0, help="Seconds for which the old secret stays valid.")] = 0,
    expires_in_days: ExpiresInDays = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Replace a key by a new one with the same name, project and scopes."""
    try:
        request = RotateRequest(grace_s=grace_s, expires_in_days=expires_in_days)
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    with _open_context(state_dir) as context:
        _print_secret(manage_keys.rotate(context, key_id, request), as_json)


@app.command("revoke")
def revoke(key_id: KeyId, state_dir: StateDir = Path(".shardtune"), as_json: AsJson = False) -> None:
    """Revoke a key at once."""
    with _open_context(state_dir) as context:
        key = manage_keys.revoke(context, key_id)
    _print(key, as_json, _key_line(key))


@projects_app.command("list")
def list_projects(state_dir: StateDir = Path(".shardtune"), as_json: AsJson = False) -> None:
    """Print projects with their quotas."""
    with _open_context(state_dir) as context:
        page = projects.list_projects(context, None, _MOST_ROWS)
    lines = [f"{p.project_id}  {json.dumps(p.quotas.model_dump())}" for p in page.projects]
    _print(page, as_json, "\n".join(lines))


@projects_app.command("set")
def set_project(
    project: Annotated[str, typer.Argument(help="Project id; the project is created if it does not exist.")],
    running_studies: Annotated[
        int | None, typer.Option(help="Maximum number of running studies (default: no limit).")
    ] = None,
    gpu_seconds_per_day: Annotated[
        float | None, typer.Option(help="Maximum GPU-seconds per day, from midnight UTC (default: no limit).")
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(help="Maximum requests per minute of all its keys, per service process (default: no limit)."),
    ] = None,
    requires_approval: Annotated[bool, typer.Option(help="Recommend a new configuration only after approval.")] = False,
    retune_gpu_seconds_per_day: Annotated[
        float | None, typer.Option(help="Maximum GPU-seconds of retunes per day (default: no limit).")
    ] = None,
    retune_timezone: Annotated[str, typer.Option(help="IANA time zone of that day and of the windows.")] = "UTC",
    retune_window: Annotated[
        list[str] | None, typer.Option(help="Time window in which retunes may start, such as 22:00-06:00.")
    ] = None,
    retune_on_fingerprint: Annotated[
        bool, typer.Option(help="Retune recommendations that a change of hardware or software made stale.")
    ] = True,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Set all quotas of a project; a quota without its option is unlimited."""
    try:
        # Validates the project's id alone: `ProjectSpec` has none, since over HTTP the id is in the path.
        KeySpec(name="x", scopes=(Scope.ADMIN,), project_id=project)
        quotas = Quotas(
            running_studies=running_studies,
            gpu_seconds_per_day=gpu_seconds_per_day,
            requests_per_minute=requests_per_minute,
        )
        retuning = RetunePolicy(
            gpu_seconds_per_day=retune_gpu_seconds_per_day,
            timezone=retune_timezone,
            windows=tuple(retune_window or ()),
            on_fingerprint=retune_on_fingerprint,
        )
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    with _open_context(state_dir) as context:
        spec = ProjectSpec(quotas=quotas, requires_approval=requires_approval, retuning=retuning)
        stored = projects.put_project(context, project, spec)
    _print(stored, as_json, f"{stored.project_id}  {json.dumps(stored.quotas.model_dump())}")


@contextmanager
def _open_context(state_dir: Path) -> Iterator[contexts.Context]:
    """Open the database for commands that change it by the service's rules, without starting a service."""
    url = local_stack.database_url(state_dir)
    # The first key is often created before the service has ever run: the database may not exist yet.
    local_stack.prepare_database_at(url)
    try:
        with local_stack.database_errors(), _context_of(url) as context:
            yield context
    except service_errors.ApiError as error:
        raise InputError(error.detail) from None


@contextmanager
def _context_of(url: str) -> Iterator[contexts.Context]:
    database = databases.Database(url)
    try:
        yield contexts.Context(database, environment.read_settings(database_url=url))
    finally:
        database.close()


def _print_secret(created: KeyCreated, as_json: bool) -> None:
    assert created.secret is not None
    # The secret alone goes to stdout: `KEY=$(shardtune keys create …)` must get nothing else.
    _print(created, as_json, created.secret.get_secret_value())
    if not as_json:
        sys.stderr.write(f"{_key_line(created.key)}\nkeep the secret now: only its hash is stored\n")


def _print(value: BaseModel, as_json: bool, text: str) -> None:
    print(value.model_dump_json() if as_json else text)


def _key_line(key: ApiKey) -> str:
    state = "valid" if key.is_valid else "revoked" if key.revoked_at else "expired"
    used = f"last used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
    return (
        f"{key.key_id}  {key.prefix}…  {key.name}  {key.project_id or 'every project'}  "
        f"{','.join(key.scopes)}  {state}, {used}"
    )
