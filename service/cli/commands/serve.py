"""`shardtune serve`: run the service."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.processes import listening_socket

if TYPE_CHECKING:
    from shardtune.service import app as application
    from shardtune.service import server
    from shardtune.service.cli import environment, local_stack
    from shardtune.service.cli.commands import keys
    from shardtune.service.observability import logs
    from shardtune.service.process import context as contexts
else:
    application = LazyModule("shardtune.service.app")
    server = LazyModule("shardtune.service.server")
    environment, local_stack = (
        LazyModule("shardtune.service.cli.environment"),
        LazyModule("shardtune.service.cli.local_stack"),
    )
    keys = LazyModule("shardtune.service.cli.commands.keys")
    logs = LazyModule("shardtune.service.observability.logs")
    contexts = LazyModule("shardtune.service.process.context")

app = typer.Typer()
log = logging.getLogger(__name__)


def _database_setting(state_dir: Path | None) -> dict[str, str]:
    """Return the settings that select the database in a state directory, and create the directory if needed. Without a
    directory, the result is empty.

    Raises:
        InputError: the directory cannot be made or written, or other users can write in it.
    """
    if state_dir is None:
        return {}
    # A mistyped directory has no studies: the line tells it from the one that `tune` used.
    if not (state_dir / local_stack.DATABASE_FILE).exists():
        log.info("--state-dir (%s) has no studies yet; its database is made there", state_dir)
    return {"database_url": local_stack.sqlite_url(local_stack.make_state_directory(state_dir))}


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8470,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="State directory of `shardtune tune`, or a new one; its database replaces SHARDTUNE_DATABASE_URL."
        ),
    ] = None,
    fd: Annotated[
        int | None,
        typer.Option(hidden=True, help="File descriptor of a listening socket, in place of --host and --port."),
    ] = None,
    own_key_hash: Annotated[
        str | None,
        typer.Option(hidden=True, help="SHA-256 of the secret of the command that starts this service for itself."),
    ] = None,
) -> None:
    """Run the service. SQLite is migrated at start; migrate other databases with `shardtune db upgrade`."""
    logs.configure(environment.read_settings().log_level)
    settings = environment.read_settings(**_database_setting(state_dir))
    local_stack.prepare_database_at(settings.database_url)
    server.allow_files(settings.max_connections)
    context = contexts.Context.opened(settings, own_key_hash)
    config = server.ServerConfig(application.create_app(settings, context), settings, host=host, port=port)
    with socket.socket(fileno=fd) if fd is not None else listening_socket(host, port) as listener:
        # After binding: only the socket knows which address a host name became.
        keys.check_reach(settings.database_url, listener.getsockname()[0])
        address = "http://{}:{}".format(*listener.getsockname()[:2])
        log.info("listening on %s; the API is described at %s/openapi.json", address, address)
        server.Server(config, context).run(sockets=[listener])
