"""Spans of requests, by FastAPI's own instrumentation, where an operator asks for them."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shardtune.db.session import Database
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.service.local_client import local_client

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans_of(sqlite_url):
    """The spans that requests leave behind, by telemetry switched on or off."""

    def ask(telemetry, *paths):
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        context = Context(Database(sqlite_url), Settings(database_url=sqlite_url, telemetry=telemetry))
        with local_client(create_app(context=context, tracer_provider=provider)) as client:
            client.headers["traceparent"] = f"00-{TRACE}-b7ad6b7169203331-01"
            client.headers["authorization"] = "Bearer canary-secret"
            for path in paths:
                client.get(path)
        return exporter.get_finished_spans()

    return ask


def test_span_continues_the_callers_trace_and_names_route_and_study(spans_of):
    spans = spans_of(True, "/v1/studies/some-study")
    request = next(span for span in spans if span.name == "GET /v1/studies/{study_id}")
    assert f"{request.context.trace_id:032x}" == TRACE
    assert request.attributes["http.response.status_code"] == 404
    assert any(span.attributes.get("shardtune.study_id") == "some-study" for span in spans)
    assert "canary-secret" not in "".join(span.to_json() for span in spans)


def test_probes_leave_no_spans_and_without_the_setting_nothing_does(spans_of):
    assert spans_of(True, "/healthz", "/readyz", "/metrics") == ()
    assert spans_of(False, "/v1/studies") == ()
