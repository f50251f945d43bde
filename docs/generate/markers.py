"""Replaces markers such as `<!-- generated: settings service -->` in a page by what the code says.

A page is written by hand around its markers: the prose has one home, and no generated text is committed.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from docs.generate import (
    cli_reference,
    code_tables,
    decision_list,
    knob_tables,
    python_reference,
    rest_reference,
    schema_tables,
    settings_reference,
)
from docs.generate.context import PageContext

MARKER = re.compile(r"^<!-- generated: ([\w-]+)((?: [\w.-]+)*) -->$")

SECTIONS: Mapping[str, Callable[..., str]] = {
    "commands": cli_reference.commands,
    "settings": settings_reference.settings,
    "rest": rest_reference.rest,
    "schema": schema_tables.some_schemas,
    "schemas": schema_tables.all_schemas,
    "study-file": schema_tables.study_file,
    "configuration": schema_tables.configuration,
    "knobs": knob_tables.knobs,
    "knob-statements": knob_tables.knob_statements,
    "lost-knobs": knob_tables.lost_knobs,
    "error-codes": code_tables.error_codes,
    "exit-codes": code_tables.exit_codes,
    "study-reasons": code_tables.study_reasons,
    "event-types": code_tables.event_types,
    "python-api": python_reference.python_api,
    "presets": code_tables.presets,
    "decisions": decision_list.decisions,
}


class MarkerError(ValueError):
    """A marker that names no section, or gives one what it does not take."""


def pages_of_sections(pages: Mapping[str, str]) -> dict[str, str]:
    """Page of each section, by the first word of its marker; the first page where several have it."""
    homes: dict[str, str] = {}
    for path, text in pages.items():
        for line in text.splitlines():
            if match := MARKER.match(line):
                homes.setdefault(match[1], path)
    return homes


def expand(context: PageContext, lines: Iterable[str]) -> list[tuple[int, str]]:
    """Lines of a page with its markers replaced, each with the number of the committed line that it comes from.

    Raises:
        MarkerError: names file, line, marker and remedy.
    """
    expanded: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        match = MARKER.match(line)
        if match is None:
            if line.startswith("<!-- generated"):
                raise MarkerError(
                    f"{context.page}:{number}: marker ({line}) must read <!-- generated: SECTION WORDS -->"
                )
            expanded.append((number, line))
            continue
        expanded += [(number, text) for text in _section(context, number, match[1], match[2].split()).splitlines()]
    return expanded


def _section(context: PageContext, number: int, name: str, words: list[str]) -> str:
    if name not in SECTIONS:
        raise MarkerError(f"{context.page}:{number}: generated ({name}) must be one of {', '.join(SECTIONS)}")
    try:
        return SECTIONS[name](context, *words)
    except (TypeError, ValueError) as error:
        raise MarkerError(f"{context.page}:{number}: generated {name}: {error}") from error
