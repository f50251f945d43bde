"""Entity tags: strong identifiers of a resource's content, compared in If-None-Match (reading) and If-Match
(changing).
"""

import hashlib
from typing import Annotated, Any

from fastapi import Header, Request, Response
from pydantic import BaseModel

from shardtune.service.http.errors import PreconditionFailed

IfMatchParam = Annotated[
    str | None,
    Header(alias="If-Match", description="Change only if the resource still has this ETag; 412 otherwise."),
]


UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "`If-None-Match` names the present version"}}
"""OpenAPI `responses` entry for routes that may answer 304 (not modified)."""


def tag_of(value: BaseModel) -> str:
    """Entity tag of a value, computed from its JSON form."""
    return tag_of_json(value.model_dump_json())


def tag_of_json(text: str) -> str:
    """Entity tag of a value from its JSON form."""
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def check(if_match: str | None, value: BaseModel) -> None:
    """Reject a change of a resource whose content has changed since the client read it (If-Match).

    Raises:
        PreconditionFailed: the resource's present tag differs from If-Match.
    """
    check_tags(if_match, tag_of(value))


def check_tags(if_match: str | None, *present: str) -> None:
    """Reject a change of an object that is part of several resources, unless If-Match has the present entity tag of
    one of these resources.

    Raises:
        PreconditionFailed: If-Match has the present tag of none of them.
    """
    if if_match is None or if_match.strip() == "*":
        return
    if not set(present) & set(_parse_tags(if_match)):
        shown = " or ".join(present)
        raise PreconditionFailed(
            "precondition_failed", f"If-Match ({if_match}) is not the present ETag ({shown}); read again, then decide"
        )


def set_etag(request: Request, response: Response, value: BaseModel, tag: str | None = None) -> Response | None:
    """Set a response's entity tag. Returns a 304 response if the client already has this version, else None."""
    tag = tag or tag_of(value)
    if_none_match = request.headers.get("if-none-match")
    if if_none_match is not None and (if_none_match.strip() == "*" or tag in _parse_tags(if_none_match)):
        # RFC 9110 wants a 304 to repeat the headers that caches choose by.
        headers = {"ETag": tag, **({"Vary": response.headers["vary"]} if "vary" in response.headers else {})}
        return Response(status_code=304, headers=headers)
    response.headers["ETag"] = tag
    return None


def _parse_tags(header: str) -> list[str]:
    """Parse the entity tags of an If-Match or If-None-Match header."""
    # Weak comparison is right for If-None-Match; the service's own tags are never weak.
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
