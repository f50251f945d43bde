"""Runs the site generator, and takes the scripts out of its pages so that a strict content security policy allows them."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class SiteError(Exception):
    """The site generator failed, or warned; it has printed why."""


def generate(folder: Path, site: Path) -> None:
    """Build `site` from what `assemble` wrote to `folder`; a warning is an error.

    Raises:
        SiteError: the generator did not succeed.
    """
    config = folder / "zensical.toml"
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    if subprocess.run(command, check=False).returncode:
        raise SiteError("the site was not built; correct what is reported above")
    built = folder / "site"
    for page in sorted(built.rglob("*.html")):
        _move_scripts(page, built)
    # The generator writes only below its configuration. Moved when complete: a running service never serves half a site.
    shutil.rmtree(site, ignore_errors=True)
    site.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(built, site)


def _move_scripts(page: Path, site: Path) -> None:
    """Put each script that stands in the page into a file beside the theme's: `script-src 'self'` allows only files."""

    def moved(match: re.Match[str]) -> str:
        name = f"assets/javascripts/inline-{hashlib.sha256(match[1].encode()).hexdigest()[:12]}.js"
        (site / name).write_text(match[1])
        return f'<script src="{os.path.relpath(site / name, page.parent)}"></script>'

    page.write_text(_INLINE.sub(moved, page.read_text()))
