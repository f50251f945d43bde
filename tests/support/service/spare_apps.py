"""Applications that no service uses just now: a new one costs half a second, most of it FastAPI's work on its routes."""

from fastapi import FastAPI

from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings

_SPARE: dict[tuple[object, ...], list[FastAPI]] = {}
"""Applications by the settings that they are assembled by."""


def take(settings: Settings, context: Context | None = None) -> FastAPI:
    """Application for a service on a migrated database, which has this context or gets one from its user.

    Nobody else has it until it is given back.
    """
    assert not settings.telemetry, "an application with telemetry exports to where its settings say"
    kind = (settings.mcp, settings.docs_dir)
    spare = _SPARE.setdefault(kind, [])
    app = spare.pop() if spare else create_app(settings, context, migrate=False)
    app.state.kind = kind
    if context is not None:
        app.state.context = context
    return app


def give_back(app: FastAPI) -> None:
    """Let the next service have an application whose service has ended."""
    # Middleware counts what requests hold; the next service begins with its own.
    app.middleware_stack = None
    _SPARE[app.state.kind].append(app)
