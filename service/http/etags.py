"""Entity tags: a strong name for what a resource looks like, for If-None-Match (reading) and If-Match (changing)."""

import hashlib
from typing import Annotated, Any

from fastapi import Header, Request, Response
from pydantic import BaseModel

from shardtune.service.http.errors import PreconditionFailed

InIfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description="Change only if the resource still has this ETag; 412 otherwise."),
]


UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "`If-None-Match` names the present version"}}
"""The `responses` of a route that may answer so, for its OpenAPI entry."""


def of(value: BaseModel) -> str:
    """The tag of a value as it is sent."""
    return f'"{hashlib.sha256(value.model_dump_json().encode()).hexdigest()[:32]}"'


def check(if_match: str | None, value: BaseModel) -> None:
    """Reject a change of something that is not what its sender saw.

    Raises:
        PreconditionFailed: it has another tag.
    """
    check_tags(if_match, of(value))


def check_tags(if_match: str | None, *present: str) -> None:
    """The same where what is changed is seen in several resources, each of which would do.

    Raises:
        PreconditionFailed: it has other tags.
    """
    if if_match is None or if_match.strip() == "*":
        return
    if not set(present) & set(_listed(if_match)):
        shown = " or ".join(present)
        raise PreconditionFailed(
            "precondition_failed", f"If-Match ({if_match}) is not the present ETag ({shown}); read again, then decide"
        )


def respond(request: Request, response: Response, value: BaseModel, tag: str | None = None) -> Response | None:
    """Set the tag; a 304 where the client has this version already, None where it must be sent."""
    tag = tag or of(value)
    known = request.headers.get("if-none-match")
    if known is not None and (known.strip() == "*" or tag in _listed(known)):
        headers = {"ETag": tag, **({"Vary": response.headers["vary"]} if "vary" in response.headers else {})}
        return Response(status_code=304, headers=headers)
    response.headers["ETag"] = tag
    return None


def _listed(header: str) -> list[str]:
    """The tags of a header. Weak comparison is right for If-None-Match; ours are never weak."""
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
