"""Every answer that a test gets is held against the service's own document: its status, and its body's schema."""

import functools
import json
import re
from typing import Any

import jsonschema_rs

from shardtune.service.app import create_app
from shardtune.service.settings import Settings

_BY_LENGTH = re.compile(r"\{[^}]*\}")


class Described:
    """A document, as far as it says what may be answered."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = document["components"]
        # `/studies/{study_id}` takes `/studies/x:cancel` as well; the address is the custom method's.
        paths = sorted(document["paths"].items(), key=lambda item: -len(_BY_LENGTH.sub("", item[0])))
        self._paths = [(re.compile(_BY_LENGTH.sub("[^/]+", path)), methods) for path, methods in paths]

    def fault(self, method: str, path: str, status: int, kind: str, body: str) -> str | None:
        """Part of a response that the document does not describe; None where it does, or does not list the address."""
        operation = next((item for pattern, item in self._paths if pattern.fullmatch(path)), {}).get(method.lower())
        if operation is None:
            return None
        answer = operation["responses"].get(str(status))
        if answer is None:
            return f"{method} {path} answered {status}, which is not described: {body[:300]}"
        schema = answer.get("content", {}).get(kind, {}).get("schema")
        if schema is None or not kind.endswith("json"):
            return None
        error = next(self._validator(json.dumps(schema)).iter_errors(json.loads(body)), None)
        return f"{method} {path} answered {status} with a body of another schema: {error}" if error else None

    def compile(self) -> None:
        """Every schema, now instead of at its first answer."""
        operations = (method for _, methods in self._paths for method in methods.values())
        answers = (answer for operation in operations for answer in operation["responses"].values())
        for form in (form for answer in answers for form in answer.get("content", {}).values()):
            if "schema" in form:
                self._validator(json.dumps(form["schema"]))

    @functools.cache  # noqa: B019 (one document lives as long as the tests)
    def _validator(self, schema: str) -> Any:
        return jsonschema_rs.validator_for(json.loads(schema) | {"components": self._components})


@functools.cache
def _document() -> Described:
    """Document of all applications: they are alike."""
    return Described(create_app(Settings(), migrate=False).openapi())


def prepare() -> None:
    """Do what the first answers would, for processes that are forked from this one."""
    _document().compile()


def check_answer(response: Any) -> None:
    """A hook of a client: reads the answer unless it is a stream."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    request = response.request
    if kind == "text/event-stream" or not request.url.path.startswith("/v1/"):
        return
    response.read()
    fault = _document().fault(request.method, request.url.path, response.status_code, kind, response.text)
    assert fault is None, fault
