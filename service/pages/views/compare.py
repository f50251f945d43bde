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
    shown: tuple[tuple[str, tuple[ComparedLine, ...]], ...]
    """Sections of the comparison, as title and rows: all measured figures, and the settings that differ."""
    folded: tuple[tuple[str, tuple[ComparedLine, ...]], ...]
    """Folded sections, as title and rows: settings with equal values, and settings that only some of the backends
    have, at their default."""
    folded_count: int
    has_missing: bool
    """Whether a visible row shows a setting that only some of the compared backends have."""
    missing: tuple[str, ...]
    """Requested trials or answers that do not exist, or have no measured figures yet."""


def comparison(compared: Comparison) -> ComparisonPage:
    """Return the values that the template of the comparison page shows."""
    figures = [line for line in comparison_words.figure_rows(compared) if not line.is_empty]
    knobs, subjects = comparison_words.knob_rows(compared), comparison_words.training_rows(compared.configs)
    folded = (
        ("Settings of some backends only, at their default", tuple(line for line in knobs if line.is_partial)),
        ("Equal settings", tuple(line for line in knobs if not line.differs and not line.is_partial)),
        ("Measured on, equal", tuple(line for line in subjects if not line.differs)),
    )
    shown = (
        ("Measured", tuple(figures)),
        ("Settings that differ", tuple(line for line in knobs if line.differs)),
        ("Measured on", tuple(line for line in subjects if line.differs)),
    )
    return ComparisonPage(
        columns=tuple(_column(side) for side in compared.configs),
        shown=tuple((title, lines) for title, lines in shown if lines),
        folded=tuple((title, lines) for title, lines in folded if lines),
        folded_count=sum(len(lines) for _, lines in folded),
        has_missing=any(line.has_missing and line.differs for line in knobs),
        missing=compared.not_found,
    )


def _column(side: ComparedConfig) -> Column:
    href = f"/studies/{side.study_id}/trials/{side.trial_number}"
    return Column(f"{side.model}, trial {side.trial_number}", href, side.description)
