"""Pictures for the documentation: pages as small WebP files, terminals as SVG, each light and dark, in docs/pictures."""

import base64
import io
import os
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page
from rich.console import Console, RenderableType
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from shardtune.service.cli.answer_to_share.picture import TERMINAL_SVG

PAGES = {
    # Name of a picture of screenshots.py, and name and height of the picture in the documentation.
    "study-answered": ("study", 1000),
    "trial": ("trial", 900),
    "why": ("why", 900),
    "best": ("best", 700),
    "calculator": ("new-study", 900),
    "compare-trials": ("compare", 800),
    "schedules": ("schedules", 800),
    "workers": ("workers", 700),
}
"""Pictures that the pages of the documentation show. One of several sizes is enough: a reader compares no pixels."""
MOST_BYTES = 60 * 1024
_WIDTH = 1280
_QUALITIES = (0.85, 0.7, 0.55, 0.4, 0.25)
_TO_WEBP = """
async ([png, quality]) => {
    const picture = await createImageBitmap(await (await fetch("data:image/png;base64," + png)).blob());
    const canvas = document.createElement("canvas");
    canvas.width = picture.width;
    canvas.height = picture.height;
    canvas.getContext("2d").drawImage(picture, 0, 0);
    return canvas.toDataURL("image/webp", quality).split(",")[1];
}
"""
_THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}
_COLUMNS, _MOST_LINES = 120, 28


class PageCamera:
    """Takes the pictures of `PAGES`, each in both palettes; other pages of the story are passed over."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._encoder = browser.new_page()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, page: Page, name: str) -> None:
        """Take what a page shows now, under its name in screenshots.py."""
        if name not in PAGES:
            return
        picture, height = PAGES[name]
        page.set_viewport_size({"width": _WIDTH, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(100)
            file = self._folder / f"{picture}-{scheme}.webp"
            file.write_bytes(self._small(page.screenshot()))

    def _small(self, png: bytes) -> bytes:
        """The picture as WebP, by the browser's own encoder, at the best quality that is small enough."""
        encoded = base64.b64encode(png).decode()
        webp = b""
        for quality in _QUALITIES:
            webp = base64.b64decode(self._encoder.evaluate(_TO_WEBP, [encoded, quality]))
            if len(webp) <= MOST_BYTES:
                return webp
        raise AssertionError(f"a picture has {len(webp)} bytes at the lowest quality; lower its height in PAGES")


def take_terminal(folder: Path, name: str, command: str, content: RenderableType) -> None:
    """Draw a terminal that shows a command and its output, in both palettes."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme, theme in _THEMES.items():
        (folder / f"{name}-{scheme}.svg").write_text(_drawn(command, content, theme))


def output_of(*arguments: str) -> Text:
    """Text that a command of `shardtune` writes to a terminal's stdout.

    Raises:
        CalledProcessError: the command failed.
    """
    script = f"from shardtune.service.cli import main; main({list(arguments)!r})"
    environment = {**os.environ, "COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1"}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    lines = ran.stdout.splitlines()
    kept = lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], "…"]
    return Text.from_ansi("\n".join(kept))


def _drawn(command: str, content: RenderableType, theme: TerminalTheme) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), command))
    console.print(content)
    return console.export_svg(title="", theme=theme, code_format=TERMINAL_SVG, unique_id="terminal")
