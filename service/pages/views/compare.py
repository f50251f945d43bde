"""Values of the page that compares configurations."""

from dataclasses import dataclass

from shardtune.api_schemas.studies.comparisons import ComparedConfig, Comparison
from shardtune.service.wording import comparison_words
from shardtune.service.wording.comparison_words import ComparedLine


@dataclass(frozen=True)
class Column:
    """Heading of one configuration's column."""

    title: str
    href: str
    description: str


@dataclass(frozen=True)
class ComparisonPage:
    """All values of the page."""

    columns: tuple[Column, ...]
    figures: tuple[ComparedLine, ...]
    subjects: tuple[ComparedLine, ...]
    knobs: tuple[ComparedLine, ...]
    missing: tuple[str, ...]
    """Requested configurations that do not exist, or have no figures yet."""


def comparison(compared: Comparison) -> ComparisonPage:
    """Return the values of the page of a comparison."""
    return ComparisonPage(
        columns=tuple(_column(side) for side in compared.configs),
        figures=comparison_words.figure_rows(compared),
        subjects=comparison_words.training_rows(compared.configs),
        knobs=comparison_words.knob_rows(compared),
        missing=compared.not_found,
    )


def _column(side: ComparedConfig) -> Column:
    href = f"/studies/{side.study_id}/trials/{side.trial_number}"
    return Column(f"{side.model}, trial {side.trial_number}", href, side.description)
