"""`shardtune mcp`: tools for coding agents on stdin and stdout (Model Context Protocol)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shardtune.service.cli import missing_extras
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import KeyFile, Service, StateDir

if TYPE_CHECKING:
    from shardtune.api_schemas import log_lines
    from shardtune.service.cli import connection
    from shardtune.service.cli.mcp import local_product, stdio
else:
    log_lines = LazyModule("shardtune.api_schemas.log_lines")
    connection = LazyModule("shardtune.service.cli.connection")
    local_product = LazyModule("shardtune.service.cli.mcp.local_product")
    stdio = LazyModule("shardtune.service.cli.mcp.stdio")

app = typer.Typer()


@app.command("mcp")
def command(service: Service = None, key_file: KeyFile = None, state_dir: StateDir = Path(".shardtune")) -> None:
    """Serve tools for coding agents on stdin and stdout (MCP): predict, plan, memory, diagnose, and studies of a service."""
    if find_spec("mcp") is None:
        raise InputError(f"the command mcp needs the package mcp; run {missing_extras.install_command('mcp')}")
    log_lines.configure("WARNING")
    if service is None:
        stdio.serve(local_product.local_product(state_dir, None))
        return
    # No request is sent before a tool needs one: folders of traces are diagnosed while the service is away.
    with connection.open_client(service, key_file) as client:
        stdio.serve(local_product.local_product(state_dir, client))
