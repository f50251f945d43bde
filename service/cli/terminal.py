"""Output of the commands without the control characters of foreign data: names of studies, messages of workers, files.

A terminal obeys such characters: they can rewrite lines, set its title or fill the clipboard.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from shardtune.api_schemas.printable_text import printable

# Typer colours its help by itself. Colours move nothing and hide nothing; blinking and concealed text are not among them.
_COLOURS = re.compile(r"(\x1b\[(?:(?:[0-4]|7|[39][0-7]);?)*m)")


class PrintableStream:
    """Text stream that writes control characters as visible escapes; tab, newline and colour codes pass unchanged."""

    def __init__(self, stream: TextIO) -> None:
        self.unchecked = stream
        """Stream to which the text goes. It is for a console that escapes control characters itself."""

    def write(self, text: str) -> int:
        """Write a text and return the text's own length, without escapes, because the caller's buffer counts it."""
        parts = _COLOURS.split(text.replace("\r\n", "\n"))
        self.unchecked.write("".join(part if at % 2 else printable(part) for at, part in enumerate(parts)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unchecked, name)


class PrintableConsole(Console):
    """Rich console that writes the control characters in its texts as visible escapes, and does not interpret markup
    in them."""

    def __init__(self, stderr: bool = False, **options: Any) -> None:
        stream = sys.stderr if stderr else sys.stdout
        # Below the checked stream, which would reject the cursor movements of a live table. Foreign names may have `:x:`.
        file = cast(TextIO, getattr(stream, "unchecked", stream))
        super().__init__(file=file, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Convert Rich's output to segments of printable text. Rich's own control segments, such as cursor movements,
        pass unchanged."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)


@contextmanager
def printable_output() -> Iterator[None]:
    """Context manager within which `print` and the standard streams show control characters as escapes."""
    with (
        redirect_stdout(cast(TextIO, PrintableStream(sys.stdout))),
        redirect_stderr(cast(TextIO, PrintableStream(sys.stderr))),
    ):
        yield
