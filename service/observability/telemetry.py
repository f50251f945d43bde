"""OpenTelemetry by FastAPI's own instrumentation (`fastapi.telemetry`): a span and a duration for each request.

Exported by OTLP as configured by the `OTEL_*` variables. Off unless SHARDTUNE_TELEMETRY is set.
"""

import logging
import os
from collections.abc import MutableMapping
from typing import Any

from fastapi import Depends, Request
from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace

from shardtune.service.settings import Settings

log = logging.getLogger(__name__)

_OFF: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
_POLLED_PATHS = ("/healthz", "/readyz", "/metrics")


def telemetry_config(settings: Settings) -> TelemetryConfig:
    """FastAPI's telemetry configuration that follows from the service's settings."""
    if not settings.telemetry:
        return _OFF
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in os.environ):
        log.warning("SHARDTUNE_TELEMETRY is set, but OTEL_EXPORTER_OTLP_ENDPOINT is not: nothing is exported")
    # Logs stay off: failures are in the service's own log, and must not be exported a second time.
    return {"logs": False, "auto_configure": True, "exclude": _is_polled}


def _is_polled(scope: MutableMapping[str, Any]) -> bool:
    return scope.get("path") in _POLLED_PATHS


async def _name_span(request: Request) -> None:
    """Add the request's path parameters (study, run, worker) as attributes to its OpenTelemetry span."""
    span = trace.get_current_span()
    for name, value in request.path_params.items():
        span.set_attribute(f"shardtune.{name}", str(value))


SPAN_ATTRIBUTES = Depends(_name_span)
"""Dependency of all routes that adds the path parameters to the request's span; it is used while telemetry is on."""
