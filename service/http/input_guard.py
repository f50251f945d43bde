"""Reject input that the database cannot store or JSON cannot express, in one place for all routes.

These are NUL characters and half surrogates in text, NaN and infinities, integers beyond 64 bits, and query parameters
that the route of an API address does not read.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from shardtune.service.http.errors import invalid, suggest_names
from shardtune.service.http.pre_body_auth import API, WITH_BODY, is_trace

_SUSPICIOUS = re.compile(rb"\x00|\\u0000|\\u[dD][89a-fA-F]|NaN|Infinity|[0-9]{19}|[eE]\+?[0-9]{3}")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_INTEGER_LIMIT = 2**63
_MAX_SHOWN = 80
"""Maximum number of characters that an error message repeats of a wrong value."""
_FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")


async def _check_request(request: Request) -> None:
    check_value(request.scope["path"], "path")
    for name, value in request.query_params.multi_items():
        check_value(name, "query")
        check_value(value, name)
    if request.query_params and request.scope["path"].startswith(API):
        _check_names(request.query_params, list(dict.fromkeys(_query_names(request.scope["route"].dependant))))
    if request.method not in WITH_BODY:
        return
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORM_TYPES and not request.scope["path"].startswith(API):
        await _check_form(request)
    elif kind.endswith("json"):
        await _check_json(request)
    elif not is_trace(request.scope["path"]):
        # Read even if the route has no use for it: a request takes its slot of the fair queue when its body has arrived.
        await request.body()


INPUT_GUARD = Depends(_check_request)
"""Dependency of all routes that rejects invalid input. It uses the body and the parameters that FastAPI has parsed."""


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Names of the query parameters that a route and its dependencies accept."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _check_names(query: Mapping[str, str], accepted: Sequence[str]) -> None:
    """Reject a request with query parameters that its route does not accept.

    Raises:
        Invalid: names the first such parameter.
    """
    # Ignoring an unknown filter would return unfiltered rows, which its sender would take for filtered ones.
    for name, value in query.items():
        if name not in accepted:
            shown = name[:_MAX_SHOWN]
            accepted_text = f"the parameters are {', '.join(accepted)}" if accepted else "it takes none; remove it"
            remedy = suggest_names(shown, accepted, "").rstrip()
            message = f"{shown} is no query parameter of this address; {f'{remedy} ' if remedy else ''}{accepted_text}"
            raise invalid(shown, value, message)


async def _check_form(request: Request) -> None:
    try:
        form = await request.form()
    except HTTPException:
        # Left to FastAPI, which rejects it if the route takes a form.
        return
    for name, entry in form.multi_items():
        check_value(name, "form")
        check_value(entry, name)


async def _check_json(request: Request) -> None:
    body = await request.body()
    try:
        # json.loads would accept any UTF encoding, and half surrogates in UTF-8.
        body.decode()
    except UnicodeDecodeError:
        raise invalid("body", None, "the body is not UTF-8; send JSON in UTF-8") from None
    # Bodies are searched as bytes first, so that only one with a suspicious sequence is parsed and walked here.
    if _SUSPICIOUS.search(body):
        try:
            value = await request.json()
        except (ValueError, RecursionError):
            # Left to FastAPI, which rejects bodies that are not JSON.
            return
        await run_in_threadpool(check_value, value, "body")


def check_value(value: object, field: str) -> None:
    """Reject a request value that a database cannot store or JSON cannot express (NUL, half surrogates, NaN, integers
    beyond 64 bits).

    Raises:
        Invalid: names the place of the value within the field `field`.
    """
    for path, leaf in _leaves(value):
        reason = _rejection_reason(leaf)
        if reason is not None:
            full_path = _UNSTORABLE.sub("\ufffd", ".".join(map(str, path)))[:_MAX_SHOWN] or field
            shown = _UNSTORABLE.sub("\ufffd", str(leaf))[:_MAX_SHOWN]
            raise invalid(full_path, shown, f"{full_path} ({shown}) {reason}; correct it")


def _leaves(value: Any) -> Iterator[tuple[tuple[object, ...], object]]:
    """Iterate over all names, texts and numbers inside a JSON value, each with its path."""
    # Iterative, since the sender decides how deep the value is nested.
    stack: list[tuple[tuple[object, ...], Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, dict):
            for name, child in item.items():
                yield (*path, name), name
                stack.append(((*path, name), child))
        elif isinstance(item, list):
            stack.extend(((*path, index), child) for index, child in enumerate(item))
        else:
            yield path, item


def _rejection_reason(leaf: object) -> str | None:
    if isinstance(leaf, str) and _UNSTORABLE.search(leaf):
        return "has a NUL character or half of a surrogate pair, which no database stores"
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return "is no number that JSON has"
    if isinstance(leaf, int) and not -_INTEGER_LIMIT <= leaf < _INTEGER_LIMIT:
        return "is beyond 64 bits"
    return None
