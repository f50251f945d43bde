"""Tables of what an operator can set, from the settings classes of the service and the worker."""

from collections.abc import Mapping
from typing import Any

from docs.generate import sources
from docs.generate.context import PageContext
from docs.generate.markdown import anchored_code, described, slug, table
from docs.generate.value_types import default_fact, value_type


def settings(_context: PageContext, *parts: str) -> str:
    """Environment variables of `service` or `worker`.

    Raises:
        ValueError: names another part, or not exactly one.
    """
    if len(parts) != 1 or parts[0] not in sources.SETTINGS:
        raise ValueError(f"settings ({' '.join(parts)}) must be one of {', '.join(sources.SETTINGS)}")
    rows = [
        (
            anchored_code(setting.variable, slug(setting.variable)),
            described(
                setting.description,
                value_type(_without_null(setting.schema), lambda _name: "JSON object"),
                default_fact(setting.schema),
            ),
        )
        for setting in sources.settings(parts[0])
    ]
    return table(("environment variable", "meaning"), rows)


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop `null`, which no environment variable can say: the variable is left out instead."""
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return {**schema, "anyOf": options} if options else schema


def without_description() -> list[str]:
    """A line `FILE:LINE: …` for each setting whose meaning is missing."""
    return [
        f"{setting.file}:{setting.line}: setting {setting.name} has no description; write one as a text under the field"
        for part in sources.SETTINGS
        for setting in sources.settings(part)
        if not setting.description
    ]
