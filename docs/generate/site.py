"""Runs the site generator, and takes the scripts out of its pages so that a strict content security policy allows them."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HASHES = "assets/style-hashes.txt"
"""File of the site with the styles that its scripts add, as a content security policy names them."""
_SEARCH_STYLE = re.compile(r"\(\"style\",\{\},(\w+)\.toString\(\)\)")
_LABELS = (
    (re.compile(r'(<nav class="md-path" aria-label=)"Navigation"'), r'\1"Path"'),
    (
        re.compile(r'(<nav class="md-nav md-nav--secondary" aria-label=)"On this page"'),
        r'\1"On this page, in the menu"',
    ),
    (
        re.compile(r'(<nav class="md-nav" data-md-level="\d" )aria-labelledby="__nav_(\w+)_label"'),
        r'\1aria-label="Section \2"',
    ),
)
"""Regions of the theme's pages that share a name: with a screen reader they cannot be told apart. Once per page each, but the
last; the first of two tables of contents is the menu's."""
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class SiteError(Exception):
    """The site generator failed, or warned; it has printed why."""


def generate(folder: Path, site: Path) -> None:
    """Build `site` from what `assemble` wrote to `folder`; a warning is an error.

    Raises:
        SiteError: the generator did not succeed, or `site` is a folder with other files.
    """
    _check_replaceable(site)
    config = folder / "zensical.toml"
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    if subprocess.run(command, check=False).returncode:
        raise SiteError("the site was not built; correct what is reported above")
    built = folder / "site"
    for page in sorted(built.rglob("*.html")):
        _move_scripts(page, built)
        _name_regions(page)
    (bundle,) = (built / "assets/javascripts").glob("bundle.*.js")
    # The buttons of a code block are a navigation region to the theme; as such they would need a name each.
    bundle.write_text(bundle.read_text().replace('"nav",{class:"md-code__nav"}', '"div",{class:"md-code__nav"}'))
    (built / HASHES).write_text("\n".join(_style_hashes(bundle)) + "\n")
    replace(site, built)


def _check_replaceable(site: Path) -> None:
    """Reject a folder whose files are not those of a site: it would be deleted.

    Raises:
        SiteError: the folder has other files, or is none.
    """
    if site.is_dir() and ((site / HASHES).is_file() or not any(site.iterdir())):
        return
    if site.exists():
        raise SiteError(f"FOLDER ({site}) is no documentation site and would be deleted; name a new or an empty folder")


def replace(site: Path, built: Path) -> None:
    """Put a complete site where an earlier one may be; a running service never serves half of one."""
    site.parent.mkdir(parents=True, exist_ok=True)
    # Renamed within one folder: removal file by file takes long enough to be seen, and so does a copy between file systems.
    fresh, earlier = (site.with_name(f".{site.name}-{state}") for state in ("fresh", "earlier"))
    for folder in (fresh, earlier):
        shutil.rmtree(folder, ignore_errors=True)
    # The generator writes only below its configuration.
    shutil.move(built, fresh)
    if site.exists():
        site.rename(earlier)
    fresh.rename(site)
    shutil.rmtree(earlier, ignore_errors=True)


def _move_scripts(page: Path, site: Path) -> None:
    """Put each script that stands in the page into a file beside the theme's: `script-src 'self'` allows only files."""

    def moved(match: re.Match[str]) -> str:
        name = f"assets/javascripts/inline-{hashlib.sha256(match[1].encode()).hexdigest()[:12]}.js"
        (site / name).write_text(match[1])
        return f'<script src="{os.path.relpath(site / name, page.parent)}"></script>'

    page.write_text(_INLINE.sub(moved, page.read_text()))


def _name_regions(page: Path) -> None:
    text = page.read_text()
    for position, (pattern, label) in enumerate(_LABELS):
        text = pattern.sub(label, text, count=0 if position == len(_LABELS) - 1 else 1)
    page.write_text(text)


def _style_hashes(bundle: Path) -> list[str]:
    """Hashes of the style sheet that the search dialog adds by script.

    Raises:
        SiteError: the theme adds it in another way than that of zensical 0.0.73.
    """
    text = bundle.read_text()
    hashes = []
    for name in _SEARCH_STYLE.findall(text):
        literal = re.search(rf"\b{name}='([^'\\]*)'", text)
        if literal:
            digest = hashlib.sha256(literal[1].encode()).digest()
            hashes.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    if not hashes:
        raise SiteError(f"{bundle.name} adds no style that docs/generate/site.py knows; the search would have none")
    return hashes
