"""Each place with an own list of kinds knows all of them: a kind that it forgot is named with the place."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from docs.generate.knob_tables import COLUMNS
from shardtune.api_schemas.knobs import Consumer
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardtune.api_schemas.trials.diagnosis import FindingKind
from shardtune.db.queries.overview import BEST_SORTS
from shardtune.service.cli import remedy_job
from shardtune.service.mcp.tool_table import TOOLS
from shardtune.service.pages.views.home.example import EXAMPLE
from shardtune.service.pages.views.home.target_card import SORTS
from shardtune.service.planning import target_comparison
from shardtune.service.wording.diagnosis_words import FINDING_TITLES
from shardtune.tuner.diagnosis import largest_part
from shardtune.tuner.diagnosis.findings.find import RULES
from shardtune.tuner.export import bundle
from shardtune.tuner.export.launchers import gpu_names
from shardtune.tuner.export.launchers.gpu_names import LauncherNames
from shardtune.tuner.prediction import catalogue
from shardtune.workers.machine import gpu_peaks

ROOT = Path(__file__).parents[2]
FINDINGS, FORMATS, GPUS = get_args(FindingKind), get_args(ExportFormat), catalogue.names()
OTHER_OPTIMIZERS = set(OPTIMIZERS) - {DEFAULT_OPTIMIZER}
_CARD = (ROOT / "service/pages/templates/best.html").read_text()
FACTS = re.findall(r"\{% call fact\('([^']+)'\) %\}", _CARD)
"""Facts of a card on the best page, in order."""


def _of_a_part() -> set[str]:
    return {kind for _, kinds in largest_part.PARTS.values() for kind in kinds} | largest_part.ABOUT_NO_PART


def _rows(page: str) -> set[str]:
    """Names in code in the first column of a page's tables."""
    first_columns = re.findall(r"^\|([^|]*)\|", (ROOT / page).read_text(), re.MULTILINE)
    return {name for column in first_columns for name in re.findall(r"`([\w-]+)`", column)}


def _named(page: str, kinds: Iterable[str]) -> set[str]:
    """Kinds that a page names in code."""
    return {kind for kind in kinds if f"`{kind}`" in (ROOT / page).read_text()}


def _documented_findings() -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", (ROOT / "docs/explanation/diagnosis.md").read_text(), re.MULTILINE))


PLACES: dict[str, tuple[Iterable[str], Iterable[str]]] = {
    "tuner/diagnosis/largest_part.py": (FINDINGS, _of_a_part()),
    "tuner/diagnosis/findings/find.py": (FINDINGS, {"out_of_memory", *(rule.__name__ for rule in RULES)}),
    "service/wording/diagnosis_words.py": (FINDINGS, FINDING_TITLES),
    "docs/explanation/diagnosis.md": (FINDINGS, _documented_findings()),
    "docs/how-to/read-a-trace.md": (FINDINGS, {*_rows("docs/how-to/read-a-trace.md")} & {*FINDINGS}),
    "docs/how-to/exports.md": (FORMATS, {"standard", *({*_rows("docs/how-to/exports.md")} & {*FORMATS})}),
    "docs/reference/optimizer.md": (OPTIMIZERS, {*_rows("docs/reference/optimizer.md")} & {*OPTIMIZERS}),
    "docs/explanation/recipes.md": (OTHER_OPTIMIZERS, _named("docs/explanation/recipes.md", OTHER_OPTIMIZERS)),
    "docs/how-to/compare-recipes.md": (OPTIMIZERS, _named("docs/how-to/compare-recipes.md", OPTIMIZERS)),
    "workers/machine/gpu_peaks.py": (GPUS, gpu_peaks.MODELS),
    "tuner/export/bundle.py": (FORMATS, {"standard", *bundle.RENDERERS, *bundle.LAUNCHERS}),
    "tuner/export/launchers/gpu_names.py": (GPUS, gpu_names.NAMES),
    "docs/generate/knob_tables.py": (get_args(Consumer), COLUMNS),
    "service/pages/views/home/target_card.py": (BEST_SORTS, dict(SORTS)),
    "service/pages/views/home/example.py": (FACTS, [name for name, _ in EXAMPLE.facts]),
}
"""Kinds that there are and those that a place lists, by place."""


def lacking(places: dict[str, tuple[Iterable[str], Iterable[str]]]) -> list[str]:
    """One sentence for each kind that a place lacks, or has although there is none."""
    lines = []
    for place, (kinds, listed) in places.items():
        lines += [f"{place} lacks {kind!r}" for kind in sorted({*kinds} - {*listed})]
        lines += [f"{place} has {kind!r}, which there is not" for kind in sorted({*listed} - {*kinds})]
    return lines


def test_every_place_knows_every_kind() -> None:
    assert lacking(PLACES) == []


@pytest.mark.parametrize("place", PLACES)
def test_a_planted_kind_is_missed_in_the_place_that_forgot_it(place: str) -> None:
    planted: dict[str, tuple[Iterable[str], Iterable[str]]] = {
        name: ({*kinds, "planted"}, {*listed, "planted"}) for name, (kinds, listed) in PLACES.items()
    }
    planted[place] = ({*PLACES[place][0], "planted"}, PLACES[place][1])
    assert lacking(planted) == [f"{place} lacks 'planted'"]


def test_the_example_card_has_the_facts_of_a_card_in_its_order() -> None:
    assert len(FACTS) >= 5
    assert [name for name, _ in EXAMPLE.facts] == FACTS


def without_reason(gpus: dict[str, LauncherNames]) -> list[str]:
    """GPUs that a launcher cannot name for no stated reason, and reasons of GPUs that both can name."""
    return [gpu for gpu, names in gpus.items() if (None in (names.skypilot, names.dstack)) != bool(names.no_name)]


def test_a_gpu_that_a_launcher_cannot_name_says_why() -> None:
    assert without_reason(gpu_names.NAMES) == []
    planted = {**gpu_names.NAMES, "planted": LauncherNames(None, "planted")}
    assert without_reason(planted) == ["planted"]
    assert without_reason({"planted": replace(planted["planted"], no_name="SkyPilot lists it not")}) == []


@pytest.mark.parametrize("left_out", [target_comparison.LEFT_OUT, remedy_job.LEFT_OUT])
def test_what_a_study_made_of_another_leaves_out_are_fields_of_a_request(left_out: frozenset[str]) -> None:
    assert left_out <= set(StudyRequest.model_fields)


def test_the_tool_for_exports_names_every_format() -> None:
    assert [form for form in FORMATS if form not in TOOLS["export"].description] == []


def _labels(page: str) -> set[str]:
    return set(re.findall(r"'([a-z-]+)': '", page))


@pytest.mark.parametrize("change", [lambda page: page, lambda page: page.replace("'ray': 'Ray job'", "")])
def test_the_page_of_exports_has_a_label_for_every_format(change: Callable[[str], str]) -> None:
    page = (ROOT / "service/pages/templates/export.html").read_text()
    assert set(FORMATS) - _labels(change(page)) == (set() if change(page) == page else {"ray"})
