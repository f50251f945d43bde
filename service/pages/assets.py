"""Serve static files under addresses that change with their content, so that browsers may cache them for good."""

import hashlib
from functools import cache
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FOLDER = Path(__file__).parent / "static"


def folder() -> Path:
    """Return the folder of the static files."""
    return _FOLDER


@cache
def url(name: str) -> str:
    """Return the address of a static file, which contains a digest of the file's content."""
    digest = hashlib.sha256((_FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


class Static(StaticFiles):
    """Static files with cache headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a static file. Browsers cache it for a year if the address contains a digest."""
        response = await super().get_response(path, scope)
        # Without a digest the content may change under the same address.
        lasting = b"v=" in scope.get("query_string", b"")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if lasting else "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
