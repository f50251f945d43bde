"""Tables of error codes, exit codes, reasons of studies, types of events and presets of models."""

from docs.generate import sources
from docs.generate.context import PageContext
from docs.generate.markdown import anchored_code, paragraphs, sentence, slug, table
from shardtune.api_schemas.training.model_presets import preset_config, preset_names, preset_sources


def error_anchor(code: str) -> str:
    """Anchor of an error code's row."""
    return f"error-{slug(code)}"


def error_codes(_context: PageContext) -> str:
    """Codes of problem documents by status."""
    rows = [
        (anchored_code(entry.code, error_anchor(entry.code)), str(entry.status), sentence(entry.meaning))
        for entry in sources.error_codes()
    ]
    return table(("code", "status", "meaning"), rows)


def exit_codes(_context: PageContext) -> str:
    """Exit codes of commands."""
    rows = [(anchored_code(str(entry.code), f"exit-{entry.code}"), entry.meaning) for entry in sources.exit_codes()]
    return table(("exit code", "meaning"), rows)


def event_types(_context: PageContext) -> str:
    """Types of events, and which of them webhooks receive by default."""
    rows = [
        (
            anchored_code(kind.name, f"event-{slug(kind.name)}"),
            kind.meaning,
            "yes" if kind.is_default_of_webhooks else "",
        )
        for kind in sources.event_kinds()
    ]
    return paragraphs(table(("type", "meaning", "sent to webhooks by default"), rows))


def study_reasons(_context: PageContext) -> str:
    """Codes of the reasons why studies stop, fail or wait."""
    rows = [
        (anchored_code(code, f"reason-{slug(code)}"), sentence(meaning)) for code, meaning in sources.study_reasons()
    ]
    return table(("reason_code", "meaning"), rows)


def presets(_context: PageContext) -> str:
    """Presets of models with the repository that each one's numbers come from."""
    sources_of = preset_sources()
    rows = []
    for name in preset_names():
        source = sources_of.get(name)
        origin = "for first studies and tests" if source is None else f"`{source.hub}`"
        count = "" if source is None else f"{source.parameters:,}"
        note = "" if source is None else sentence(source.note) if source.note else ""
        rows.append(
            (anchored_code(name, f"preset-{slug(name)}"), f"`{preset_config(name)['model_type']}`", count, origin, note)
        )
    return table(("preset", "`model_type`", "parameters", "published as", "difference"), rows)
