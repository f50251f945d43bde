"""Reject what no database stores and no JSON says, once for every route: NUL characters and half surrogates in text,
NaN and infinities, whole numbers beyond 64 bits; and what follows the question mark of an API address that its route does
not read.

Bodies are first searched as bytes, so that only one with a suspicious sequence is walked.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from shardtune.service.http.errors import close_matches, invalid
from shardtune.service.http.pre_body_auth import API, WITH_BODY

_SUSPICIOUS = re.compile(rb"\x00|\\u0000|\\u[dD][89a-fA-F]|NaN|Infinity|[0-9]{19}|[eE]\+?[0-9]{3}")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_WHOLE = 2**63
_LONGEST = 80
"""Characters of a wrong value that an error repeats."""
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


async def _check(request: Request) -> None:
    check(request.scope["path"], "path")
    for name, value in request.query_params.multi_items():
        check(name, "query")
        check(value, name)
    if request.query_params and request.scope["path"].startswith(API):
        _check_names(request.query_params, list(dict.fromkeys(_read_of_query(request.scope["route"].dependant))))
    if request.method not in WITH_BODY:
        return
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS and not request.scope["path"].startswith(API):
        await _check_form(request)
    elif kind.endswith("json"):
        await _check_json(request)


READABLE = Depends(_check)
"""For the whole application; what FastAPI has read of the request is not read again."""


def _read_of_query(dependant: Dependant) -> Iterator[str]:
    """Names that a route and what it depends on read from the query."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _read_of_query(inner)


def _check_names(given: Mapping[str, str], known: Sequence[str]) -> None:
    """Reject a filter that nobody applies: its sender would take the answer for a filtered one.

    Raises:
        Invalid: names the first such parameter.
    """
    for name, value in given.items():
        if name not in known:
            shown = name[:_LONGEST]
            there = f"the parameters are {', '.join(known)}" if known else "it takes none; remove it"
            remedy = close_matches(shown, known, "").rstrip()
            message = f"{shown} is no query parameter of this address; {f'{remedy} ' if remedy else ''}{there}"
            raise invalid(shown, value, message)


async def _check_form(request: Request) -> None:
    try:
        form = await request.form()
    except HTTPException:
        # FastAPI's to reject, or nobody's: the route takes no form.
        return
    for name, entry in form.multi_items():
        check(name, "form")
        check(entry, name)


async def _check_json(request: Request) -> None:
    body = await request.body()
    try:
        # json would take any UTF, and half surrogates in UTF-8.
        body.decode()
    except UnicodeDecodeError:
        raise invalid("body", None, "the body is not UTF-8; send JSON in UTF-8") from None
    if _SUSPICIOUS.search(body):
        try:
            value = await request.json()
        except (ValueError, RecursionError):
            # As above.
            return
        await run_in_threadpool(check, value, "body")


def check(value: object, field: str) -> None:
    """Reject a value that cannot be stored or said.

    Raises:
        Invalid: names the place within `field`.
    """
    for path, leaf in _leaves(value):
        reason = _reason(leaf)
        if reason is not None:
            where = _UNSTORABLE.sub("\ufffd", ".".join(map(str, path)))[:_LONGEST] or field
            shown = _UNSTORABLE.sub("\ufffd", str(leaf))[:_LONGEST]
            raise invalid(where, shown, f"{where} ({shown}) {reason}; correct it")


def _leaves(value: Any) -> Iterator[tuple[tuple[object, ...], object]]:
    """Every name, text and number with its place; no recursion, since the nesting is the sender's."""
    stack: list[tuple[tuple[object, ...], Any]] = [((), value)]
    while stack:
        place, item = stack.pop()
        if isinstance(item, dict):
            for name, child in item.items():
                yield (*place, name), name
                stack.append(((*place, name), child))
        elif isinstance(item, list):
            stack.extend(((*place, index), child) for index, child in enumerate(item))
        else:
            yield place, item


def _reason(leaf: object) -> str | None:
    if isinstance(leaf, str) and _UNSTORABLE.search(leaf):
        return "has a NUL character or half of a surrogate pair, which no database stores"
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return "is no number that JSON has"
    if isinstance(leaf, int) and not -_WHOLE <= leaf < _WHOLE:
        return "is beyond 64 bits"
    return None
