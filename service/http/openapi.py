"""Build the OpenAPI document, in which every route lists all errors that it can answer as application/problem+json."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from shardtune.service.http.error_codes import problems
from shardtune.service.http.field_texts import FieldTexts

_METHODS = ("get", "post", "put", "patch", "delete")
_CODES_OF_MEMORY = ("too_many_bytes", "memory_busy")
_CODES_ANYWHERE = ("invalid_request", "internal_error", "database_busy", "database_unreachable", *_CODES_OF_MEMORY)
_CODES_WITH_BODY = ("bad_request", "content_too_large")
_CODES_WITH_IDEMPOTENCY_KEY = ("invalid_idempotency_key", "idempotency_key_reused", "content_too_large")
_CODES_WITH_API_KEY = ("key_required", "key_invalid", "scope_missing", "local_only", "quota_requests")
_RETRYABLE = ("429", "503")
_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def install(app: FastAPI, scopes_of: Callable[[str], Sequence[str]]) -> None:
    """Build the application's OpenAPI document with all errors and required scopes of each route, and serve it in
    place of FastAPI's own.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            for path in schema["paths"].values():
                for method in _METHODS:
                    if method in path:
                        _name_scopes(path[method], scopes_of)
                        _add_errors(path[method])
            # FastAPI's own error bodies; no route of this app uses them.
            for unused in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(unused, None)
            FieldTexts(schema).describe_all()
            app.openapi_schema = schema
        return app.openapi_schema

    @cache
    # Encoded once: the document has half a megabyte, and anybody may ask for it without a key.
    def encoded() -> bytes:
        return json.dumps(document(), ensure_ascii=False, separators=(",", ":")).encode()

    build_lock = threading.Lock()

    def read() -> Response:
        # Without the lock, the first requests would each build it at once, a second of work each.
        with build_lock:
            return Response(encoded(), media_type="application/json")

    app.openapi = document  # type: ignore[method-assign]
    app.add_api_route("/openapi.json", read, include_in_schema=False)


def _name_scopes(operation: dict[str, Any], scopes_of: Callable[[str], Sequence[str]]) -> None:
    """List each scope that suffices for a route as a separate security alternative in the OpenAPI document."""
    # OpenAPI reads several scopes of one requirement as all required.
    if "security" in operation:
        operation["security"] = [
            {scheme: [scope]}
            for requirement in operation["security"]
            for scheme, (action,) in requirement.items()
            for scope in scopes_of(action)
        ]


def _add_errors(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    declared = {status: answer for status, answer in responses.items() if int(status) >= 400}
    declared.pop("422", None) if _is_fastapi_default(declared.get("422")) else None
    general = problems(*_possible_codes(operation))
    for status in sorted({*declared, *map(str, general)}):
        texts = [declared.get(status, {}).get("description"), general.get(int(status), {}).get("description")]
        answer: dict[str, Any] = {"description": "\n\n".join(text for text in texts if text), "content": _PROBLEM}
        if status in _RETRYABLE:
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
        responses[status] = answer


def _possible_codes(operation: Mapping[str, Any]) -> list[str]:
    codes = list(_CODES_ANYWHERE)
    parameters = operation.get("parameters", [])
    if "requestBody" in operation:
        codes += _CODES_WITH_BODY
    if any(parameter["name"] == "Idempotency-Key" for parameter in parameters):
        codes += _CODES_WITH_IDEMPOTENCY_KEY
    if "security" in operation:
        codes += _CODES_WITH_API_KEY
    return codes


def _is_fastapi_default(answer: Mapping[str, Any] | None) -> bool:
    """Whether an entry under `responses` in an OpenAPI document is the 422 that FastAPI adds to every route with
    input.
    """
    return answer is not None and answer.get("description") == "Validation Error"
