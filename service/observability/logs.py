"""Logs of the service on stderr: one JSON object per line, with study, trial, run and attempt if known."""

import logging

from shardtune.api_schemas import log_lines


def configure(level: str) -> None:
    """Send all logs of the process to stderr as JSON lines."""
    log_lines.configure(level)
    # Leases and heartbeats would fill the log with access lines.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # They log whole URLs, and the URL of a webhook may be its secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
