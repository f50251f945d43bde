"""Serves the documentation site under `/docs/`, where it was built.

The site is files of this repository and says nothing about the installation, so it needs no key, as the pages' own static files.
"""

import re
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from shardtune.service.pages.rendering import render
from shardtune.service.settings import Settings

ADDRESS = "/docs"
_STYLE_HASHES = "assets/style-hashes.txt"
"""File of the site with the hashes of styles that its scripts add: the search dialog has one."""
_HASH = re.compile(r"'sha256-[A-Za-z0-9+/]{43}='")
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Content security policy of SVG files, which carry their own styles; browsers apply the policy of the response to them."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_BUILT = Path(__file__).parents[3] / "build/site"
"""Folder into which `make docs` builds the site in a checkout; an installed package has none."""


def site_folder(settings: Settings, built: Path = _BUILT) -> Path | None:
    """Folder of the site: the one that is set, else the one that was built in this checkout; None where there is none."""
    if settings.docs_dir is not None:
        return settings.docs_dir
    return built if (built / "index.html").is_file() else None


def install(app: FastAPI, settings: Settings) -> None:
    """Mount the site, or a page that says how to build it."""
    folder = site_folder(settings)
    if folder is not None:
        app.mount(ADDRESS, _Site(directory=folder), name="docs")
    else:
        app.add_api_route(f"{ADDRESS}/", _show_how_to_build, include_in_schema=False)


def _show_how_to_build(request: Request) -> Response:
    """Say where the documentation is, on a service that has no built site."""
    return render(request, "no_docs.html")


def policy(folder: Path) -> str:
    """Content security policy of the site: scripts and styles are its own files, and nothing comes from another host."""
    file = folder / _STYLE_HASHES
    hashes = _HASH.findall(file.read_text()) if file.is_file() else []
    styles = " ".join(["'self'", *hashes])
    # `data:` for the theme's icons, which are pictures within its style sheet.
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data:; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )


class _Site(StaticFiles):
    """Files of the site, under a policy that lets them load nothing from another host."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response("index.html" if path in ("", ".") else path, scope)
        response.headers.update(_HEADERS)
        # Read anew: the site may have been built since.
        is_picture = path.endswith(".svg")
        response.headers["Content-Security-Policy"] = (
            _PICTURE_POLICY if is_picture else policy(Path(str(self.directory)))
        )
        return response
