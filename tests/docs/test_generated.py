"""Sections that are generated from the code: complete, linked, and refused where a marker is wrong."""

import inspect
import re

import pytest
from typer.core import TyperGroup

from docs.generate import markers, pages, settings_reference, sources
from docs.generate.assemble import documentation_pages
from docs.generate.cli_reference import parameters
from docs.generate.context import PageContext
from docs.generate.rest_reference import routes

HOMES = markers.pages_of_sections(documentation_pages())


def section(marker: str, page: str = "docs/reference/page.md") -> str:
    lines = markers.expand(PageContext(page, HOMES), [f"<!-- generated: {marker} -->"])
    return "\n".join(line for _, line in lines)


def test_every_command_has_its_arguments_and_options():
    text = section("commands")
    for name, command in sources.command_line().items():
        inner = command.commands.items() if isinstance(command, TyperGroup) else [("", command)]
        for below, entry in inner:
            assert f"`shardtune {name} {below}".rstrip() + "`" in text
            for parameter in parameters(entry):
                assert parameter.opts[0] in text or str(parameter.metavar or parameter.name).upper() in text


@pytest.mark.parametrize("part", sources.SETTINGS)
def test_every_setting_has_a_row_with_its_description(part):
    text = section(f"settings {part}")
    for setting in sources.settings(part):
        assert f"`{setting.variable}`" in text and " ".join(setting.description.split()).replace("|", r"\|") in text
    assert settings_reference.without_description() == []


def test_a_setting_without_a_description_is_reported_with_its_line(monkeypatch):
    silent = sources.settings("worker")[0]._replace(description="")
    monkeypatch.setattr(sources, "settings", lambda _part: [silent])
    (problem, _) = settings_reference.without_description()
    assert re.match(rf"{silent.file}:\d+: setting {silent.name} has no description", problem)


def test_every_route_has_its_scope_and_its_errors():
    text = section("rest")
    for route in routes():
        assert f"### `{route.method} {route.path}`" in text
    shared = text.partition("may also answer with ")[2].partition("\n")[0]
    assert all(f"[`{code}`]" in text for route in routes() for code in route.codes) and "`key_required`" in shared


@pytest.mark.parametrize("marker", ["study-file", "configuration", "schemas"])
def test_links_between_tables_lead_to_a_table(marker):
    text = section(marker)
    own = pages.anchors(pages.numbered(text))
    targets = re.findall(r"\]\(([^)#]*)#([\w-]+)\)", text)
    assert targets and {anchor for page, anchor in targets if not page} <= own


def test_every_error_code_event_and_exit_code_has_a_row():
    assert all(f"`{entry.code}`" in section("error-codes") for entry in sources.error_codes())
    assert all(f"`{entry.code}`" in section("exit-codes") for entry in sources.exit_codes())
    assert all(f"`{kind.name}`" in section("event-types") and kind.meaning for kind in sources.event_kinds())


def test_every_public_name_of_the_package_has_a_section_with_each_of_its_arguments():
    text = section("python-api")
    for name, value in sources.python_api().items():
        assert f"`{name}()`" in text or f"`{name}`" in text
        if inspect.isfunction(value):
            described = text.partition(f"## `{name}()`")[2].partition("\n## ")[0]
            arguments = inspect.signature(value).parameters
            # `memory` refers to `predict`, whose arguments it takes.
            assert name == "memory" or all(f"| `{argument}` |" in described for argument in arguments)


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        ("<!-- generated: setings worker -->", "generated (setings) must be one of commands, settings"),
        ("<!-- generated: settings gpu -->", "settings (gpu) must be one of service, worker"),
        ("<!-- generated: commands tine -->", "command (tine) must be one of tune, serve"),
        ("<!-- generated: schema Nothing -->", "schema (Nothing) must be one of "),
        ("<!-- generated: rest, all -->", "must read <!-- generated: SECTION WORDS -->"),
    ],
)
def test_a_marker_that_names_nothing_is_refused_with_its_place(line, stated):
    with pytest.raises(markers.MarkerError, match=r"docs/reference/page.md:2: ") as refused:
        markers.expand(PageContext("docs/reference/page.md", HOMES), ["# Page", line])
    assert stated in str(refused.value)
