"""Loaded by schemathesis in tests/flow/pages/test_page_fuzz.py: what every answer of a page must satisfy.

With FUZZ_CANARY, an answer that has this word fails.
"""

import os

import schemathesis

_STATUSES = (200, 303, 401, 403, 404, 409, 413, 422, 429)
_TOO_LONG = "its line and headers exceed 65536 bytes"
"""Words of the HTTP server itself about a request whose head is longer than its buffer: it asks nobody who reads it."""

_NO_PARTS = "Missing boundary in multipart."
"""Words of the page that rejects a form of media type multipart/form-data without parts."""


@schemathesis.check
def a_page_for_a_person(ctx, response, case):
    """Exports and traces are files; whatever is rejected is a page."""
    if response.status_code == 400 and _TOO_LONG in response.text:
        assert len(response.request.url) > 8000, response.request.url
        return
    # The coverage of the document sends other methods than it has, and forms that claim to be in parts.
    described = case.operation.schema.raw_schema["paths"][case.operation.path]
    statuses = _STATUSES if response.request.method.lower() in described else (*_STATUSES, 405)
    statuses = (*statuses, 400) if _NO_PARTS in response.text else statuses
    assert response.status_code in statuses, f"{response.status_code} {response.text[:300]}"
    assert "Traceback (most recent" not in response.text
    kind = (response.headers.get("content-type") or [""])[0]
    assert response.status_code < 400 or kind.startswith("text/html"), kind


@schemathesis.check
def nothing_of_the_other_project(ctx, response, case):
    """The fuzzer cannot know the word, so no answer has it from the request."""
    word = os.environ.get("FUZZ_CANARY")
    assert not word or word not in response.text, f"{word} is in the answer"
