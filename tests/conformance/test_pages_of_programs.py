"""Pages that say what becomes of a feature in each program that trains from an export know every such program."""

import re
from collections.abc import Mapping, Sequence
from typing import get_args

import pytest

from shardtune.api_schemas.studies.exports import ExportFormat, FineTuningFormat, LauncherFormat
from tests.conformance.registries import ROOT

TOOLS, LAUNCHERS = get_args(FineTuningFormat), get_args(LauncherFormat)
PROGRAMS = tuple(form for form in get_args(ExportFormat) if form not in {"standard", *TOOLS, *LAUNCHERS})
SIBLINGS: Mapping[str, Sequence[str]] = {"axolotl": TOOLS, "torchtitan": PROGRAMS}
"""Formats that a page names, all of them, if it names the first."""
OTHER_SUBJECT = {
    "docs/explanation/parallelism.md": "the only program with these axes",
}
"""Pages about a part of the formats, with the subject."""
EXPORTS = "docs/how-to/exports.md"
LABELS = dict(re.findall(r"'([a-z-]+)': '([^']+)'", (ROOT / "service/pages/templates/export.html").read_text())) | {
    "training-arguments": "Trainer"
}


def names_format(text: str, form: str) -> bool:
    """Whether a text names a format: by its own name, its label, or the name of its file."""
    names = {form, form.replace("-", "_"), LABELS.get(form, form)}
    return any(re.search(rf"(?<![a-z]){re.escape(name)}", text, re.IGNORECASE) for name in names)


def lacking(pages: Mapping[str, str], siblings: Mapping[str, Sequence[str]]) -> list[str]:
    """One sentence for each format that a page forgot."""
    return [
        f"{path} names {first} and lacks {form!r}"
        for path, text in sorted(pages.items())
        for first, forms in siblings.items()
        if path not in OTHER_SUBJECT and names_format(text, first)
        for form in forms
        if not names_format(text, form)
    ]


def _pages() -> dict[str, str]:
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "skills").rglob("*.md")]
    names = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {
        name: path.read_text()
        for name, path in names.items()
        if not name.startswith(("docs/measurements/", "docs/decisions/"))
    }


PAGES = _pages()


def test_a_page_that_names_one_program_names_every_other_one() -> None:
    assert lacking(PAGES, SIBLINGS) == []


@pytest.mark.parametrize(
    ("first", "page"),
    [
        ("torchtitan", "docs/explanation/loss.md"),
        ("torchtitan", "docs/how-to/samples-of-several-lengths.md"),
        ("torchtitan", "docs/reference/optimizer.md"),
        ("axolotl", "docs/explanation/activation-offload.md"),
        ("axolotl", "docs/reference/precision.md"),
        ("axolotl", "docs/how-to/fine-tune-with-lora.md"),
    ],
)
def test_a_planted_format_is_missed_in_each_page_that_names_its_siblings(first: str, page: str) -> None:
    planted = {first: (*SIBLINGS[first], "planted")}
    assert f"{page} names {first} and lacks 'planted'" in lacking(PAGES, planted)


def test_each_format_has_a_row_in_the_page_of_exports() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGES[EXPORTS], re.MULTILINE)
    # Launchers leave out no settings: their files start the standard ones.
    expected = {form: 1 if form in LAUNCHERS else 2 for form in (*PROGRAMS, *TOOLS, *LAUNCHERS)}
    assert {form: rows.count(form) for form in expected} == expected


def test_other_subjects_are_of_pages_that_would_lack_a_format() -> None:
    for path in OTHER_SUBJECT:
        assert any(
            names_format(PAGES[path], first) and not all(names_format(PAGES[path], form) for form in forms)
            for first, forms in SIBLINGS.items()
        )
