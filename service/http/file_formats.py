"""Formats of a recommended configuration: JSON, or one of its exported files, by `?format=` or the Accept header."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel

from shardtune.service.http import etags
from shardtune.service.http.errors import NotAcceptable, invalid

JSON = "json"
FormatParam = Annotated[str | None, Query(description="`json`, or the name of an exported file such as `launch.sh`.")]

_JSON_FILE = "application/vnd.shardtune.file+json"
"""Media type under which a client can ask for an exported file of JSON. Plain `application/json` stands for the
recommendation itself.
"""
_MEDIA = {
    ".json": _JSON_FILE,
    ".yaml": "application/yaml",
    ".sh": "text/x-shellscript",
    ".sbatch": "text/x-shellscript",
    ".py": "text/x-python",
}
_OTHERS = "text/plain"
FILES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            media: {"schema": {"type": "object" if media == _JSON_FILE else "string"}}
            for media in dict.fromkeys((*_MEDIA.values(), _OTHERS))
        }
    }
}
"""OpenAPI `responses` entry for routes that may answer with an exported file."""
_BY_ACCEPT = {
    "application/yaml": "accelerate.yaml",
    "text/x-shellscript": "launch.sh",
    "text/x-python": "train_snippet.py",
}
_JSON = ("application/json", "application/*", "*/*")


def requested_format(request: Request, response: Response, stated: str | None) -> str:
    """Choose the format of a response: `json` or the name of a configuration file. The format stated in the query
    applies, else the one that the Accept header prefers.

    Raises:
        NotAcceptable: the Accept header names no format that the service can produce.
    """
    # One URL has several representations, so caches must store them apart.
    response.headers["Vary"] = "Accept"
    return stated or _preferred_format(request.headers.get("accept", "*/*"))


def file_response(
    request: Request, response: Response, value: BaseModel, tag: str, files: Mapping[str, str], name: str
) -> Response:
    """Respond with one of the ready-to-use files of a configuration. The entity tag of the file is derived from the
    entity tag of the configuration.

    Raises:
        Invalid: the configuration has no file of this name.
    """
    if name not in files:
        raise invalid("format", name, f"format ({name}) is not json or one of {', '.join(files)}; use one of these")
    not_modified = etags.set_etag(request, response, value, f'{tag[:-1]}-{name}"')
    media = next((media for suffix, media in _MEDIA.items() if name.endswith(suffix)), _OTHERS)
    headers = {"ETag": response.headers.get("etag", ""), "Vary": "Accept", "X-Content-Type-Options": "nosniff"}
    return not_modified or Response(files[name], media_type=media, headers=headers)


def _preferred_format(accept: str) -> str:
    # Entries in the order of the header: quality values are ignored.
    for entry in accept.split(","):
        media = entry.partition(";")[0].strip().lower()
        if media in _JSON:
            return JSON
        if media in _BY_ACCEPT:
            return _BY_ACCEPT[media]
    offered = ", ".join(["application/json", *_BY_ACCEPT])
    raise NotAcceptable(
        "not_acceptable", f"Accept ({accept:.200}) names none of {offered}; use one of these, or ?format="
    )
