"""Words on the confirmation of a projection by a study on the target."""

from shardtune.api_schemas.studies.target_confirmations import MeasuredOnTarget, TargetConfirmation
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.service.wording import plan_words, study_words

_STATUS = {
    "projected": "projected and not measured",
    "confirmed": "confirmed by runs on it",
    "changed": "the projection's first choice was not confirmed by runs on it",
}


def status(projection: StudyProjection) -> str:
    """Say whether the answer for the target cluster is projected only, or was confirmed or changed by runs there."""
    if projection.verdict == "projected" and projection.confirmation is not None:
        return "projected; runs on it did not decide"
    return _STATUS[projection.verdict]


def page_status(projection: StudyProjection) -> str:
    """Return the sentence below the heading of the section about the target (a larger cluster) on a study's page."""
    if projection.confirmation is None:
        return "Nothing was measured there: only a run on the target can confirm it."
    text = outcome(projection.confirmation)
    return f"{text[0].upper()}{text[1:]}."


def sentences(projection: StudyProjection) -> list[str]:
    """Return sentences about the runs on the target cluster: their answer, and the error of the projection. Empty if
    nothing ran on the target."""
    confirmation = projection.confirmation
    if confirmation is None:
        return []
    return [outcome(confirmation), *(_error(row) for row in confirmation.measured)]


def outcome(confirmation: TargetConfirmation) -> str:
    """Say which study confirmed or changed the answer for the target cluster, and the ratio of the speeds of its two
    fastest configurations."""
    by = f"study {confirmation.study_id} ran on the target"
    if confirmation.outcome == "undecided":
        return f"{by}, and its pairs did not decide{_ratio(confirmation)}: the projected order stays"
    verb = "confirmed" if confirmation.outcome == "confirmed" else "changed the answer to"
    return f"{by} and {verb} {confirmation.description}{_ratio(confirmation)}"


def _ratio(confirmation: TargetConfirmation) -> str:
    if len(confirmation.measured) < 2:
        return " (the other choice did not run there)"
    if confirmation.speedup is None:
        return " (by one run of each)"
    interval = ""
    if confirmation.ci95 is not None:
        low, high = confirmation.ci95
        interval = f", 95 % interval {low:.2f} to {high:.2f}"
    pairs = f"{confirmation.pairs} pair{'s' if confirmation.pairs > 1 else ''}"
    return f" (first over second choice: {confirmation.speedup:.2f}×{interval}, {pairs})"


def _error(row: MeasuredOnTarget) -> str:
    side = "inside" if row.is_inside_band else "outside"
    return (
        f"{row.description}: measured {study_words.rate(row.tokens_per_s_per_gpu)} tokens/s/GPU there, projected "
        f"{plan_words.band(row.projected, study_words.rate)}; {_off_by(row.error)}, {side} its 90 % band"
    )


def _off_by(error: float) -> str:
    if error >= 1:
        return f"{1 + error:.1f} times the measured speed"
    return f"{100 * abs(error):.0f} % too {'fast' if error > 0 else 'slow'}"
