"""Serves the documentation site under `/docs/`, where it was built.

The site is files of this repository and says nothing about the installation, so it needs no key, as the pages' own static files.
"""

import os
import re
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from shardtune.service.pages.rendering import render
from shardtune.service.settings import Settings

ADDRESS = "/docs"
_FIRST_PAGE = "index.html"
_STYLE_HASHES = "assets/style-hashes.txt"
"""File in the documentation site with the hashes of the inline styles that the site's scripts add, such as those of
the search dialog."""
_HASH = re.compile(r"'sha256-[A-Za-z0-9+/]{43}='")
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Content security policy of SVG files, which contain their own styles. An SVG file is shown under the policy of its
own response."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_BUILT = Path(__file__).parents[3] / "build/site"
"""Folder into which `make docs` builds the documentation site in a checkout. It does not exist in an installed
package."""


def site_folder(settings: Settings, built: Path = _BUILT) -> Path | None:
    """Return the folder of the documentation site: the one that the setting `docs_dir` names or, without it, the site
    built in this checkout. None if there is no site."""
    if settings.docs_dir is not None:
        return settings.docs_dir
    return built if (built / _FIRST_PAGE).is_file() else None


def install(app: FastAPI, settings: Settings) -> None:
    """Mount the documentation site under `/docs/`. Without a built site, mount a page that says how to build it."""
    folder = site_folder(settings)
    # The framework would redirect to the host that the request names, and leave TLS behind a proxy that it does not trust.
    app.add_api_route(ADDRESS, _redirect_to_start, include_in_schema=False)
    if folder is not None:
        app.mount(ADDRESS, _Site(directory=folder), name="docs")
    else:
        app.add_api_route(f"{ADDRESS}/", _show_how_to_build, include_in_schema=False)


def _show_how_to_build(request: Request) -> Response:
    """Show where the documentation is, if the service has no built site."""
    return render(request, "no_docs.html")


def _redirect_to_start(request: Request) -> Response:
    """Redirect `/docs` to `/docs/`: without the slash, relative links of the page would be wrong."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}{ADDRESS}/")


def policy(folder: Path) -> str:
    """Return the content security policy of the documentation site. It allows scripts and styles of the site only, and
    no other host."""
    try:
        hashes = _HASH.findall((folder / _STYLE_HASHES).read_text(errors="replace"))
    except OSError:
        # A site of another generator has no such file, and one that is being replaced lacks it for a moment.
        hashes = []
    styles = " ".join(["'self'", *hashes])
    # `data:` for the theme's icons, which are pictures within its style sheet.
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data:; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )


class _Site(StaticFiles):
    """Server of the documentation site's files, with a policy that lets them load nothing from another host."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file or folder of the site. None for a hidden file, and for a path that the file system cannot look
        up."""
        if any(part.startswith(".") for part in path.split("/")):
            return "", None
        try:
            return super().lookup_path(path)
        except (OSError, ValueError):
            # Starlette 1.10 answers 500 for a link that leads to itself, and 401 for a folder that is closed to the service.
            # A NUL character is a ValueError.
            return "", None

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file of the site; for a folder, redirect to the folder's first page."""
        path = _FIRST_PAGE if path in ("", ".") else path
        try:
            response = await super().get_response(path, scope)
        except HTTPException as error:
            page = f"{path}/{_FIRST_PAGE}"
            if error.status_code != HTTPStatus.NOT_FOUND or not await self._has(page):
                raise
            return RedirectResponse(f"{scope['root_path']}/{quote(page)}")
        response.headers.update(_HEADERS)
        # Read anew: the site may have been built since.
        is_picture = path.endswith(".svg")
        response.headers["Content-Security-Policy"] = (
            _PICTURE_POLICY if is_picture else policy(Path(str(self.directory)))
        )
        return response

    async def _has(self, path: str) -> bool:
        _, status = await run_in_threadpool(self.lookup_path, path)
        return status is not None
