"""Card of a tuning target on the first page: its best configuration, the gain, the cost, and what to do next."""

from dataclasses import dataclass, replace
from datetime import datetime

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Speedup, Verdict
from shardtune.api_schemas.studies.verdicts import TOO_BUSY_STATE
from shardtune.service.pages.figures import rate
from shardtune.service.pages.views import words
from shardtune.service.pages.views.best import StudyLine
from shardtune.service.pages.views.recommendation import Recommended
from shardtune.service.pages.views.study_sections.next_step import NextStep, next_step
from shardtune.service.wording import study_words

_FRESH_TONES = {"fresh": "good", "stale": "warn", "unchecked": "quiet"}
SORTS = (
    ("age", "newest"),
    ("speed", "speed"),
    ("speedup", "gain"),
    ("mfu", "MFU"),
    ("model", "model"),
)
"""Pairs of a sort order and the name under which the form offers it."""
ACTION_HELP = {
    "approve": "Recommend this configuration to training jobs",
    "pin": "Keep recommending it, even after a faster one is found",
}
"""Explanation of what each action on a recommendation does, by the action's name."""


@dataclass(frozen=True)
class TargetGain:
    """Speed-up of a tuning target's answer over the baseline, with a badge that says how certain it is."""

    badge: str
    tone: str
    explained: str
    """Explanation of the badge."""
    value: str = ""
    interval: str = ""
    """95 % interval of the speed-up; empty if there is no speed-up."""
    note: str = ""
    study_id: str = ""
    """Id of the study that measured the speed-up; empty if this is the study that the card shows."""


@dataclass(frozen=True)
class TargetCard:
    """One card."""

    line: StudyLine
    speed: str
    gain: TargetGain
    cost: str
    fresh_tone: str
    state: tuple[str, str] | None
    """Tone (colour) and text of the recommendation's badge, which says that it is pinned or that training jobs do not
    get it. None if there is no badge."""
    next_step: NextStep | None
    has_export_link: bool
    """Whether the card links to the export beside its next step."""
    has_rerun_button: bool
    """Whether the card offers to run the study again beside its next step."""
    actions: tuple[tuple[str, str, str], ...]
    """Name, button label and explanation of each action on the recommendation, without the action that the next step
    already offers."""


def target_card(line: StudyLine, price_per_gpu_hour: float | None, currency: str, now: datetime) -> TargetCard:
    """Return the card of a tuning target."""
    study, recommended = line.study, line.recommended
    step = next_step(study, recommended, line.freshness, now)
    offered = recommended.actions if recommended is not None else ()
    shown = ("pin", "unpin", "approve")
    return TargetCard(
        line=line,
        speed=rate(line.best.tokens_per_s_per_gpu),
        gain=_gain(study, recommended),
        cost=_cost(study, price_per_gpu_hour, currency),
        fresh_tone=_FRESH_TONES[line.freshness.word],
        state=_state(recommended),
        next_step=step,
        has_export_link=step is None or not step.href.endswith("/export"),
        has_rerun_button=not _is_sent_by(step, "rerun"),
        actions=tuple(
            (name, label, ACTION_HELP.get(name, ""))
            for name, label in offered
            if name in shown and not _is_sent_by(step, name)
        ),
    )


def _state(recommended: Recommended | None) -> tuple[str, str] | None:
    if recommended is None:
        return None
    if recommended.is_pinned:
        return "busy", "pinned"
    return None if recommended.state == "recommended" else (recommended.tone, recommended.state)


def _is_sent_by(step: NextStep | None, name: str) -> bool:
    return step is not None and step.action.endswith(f"/{name}")


def _cost(study: Study, price_per_gpu_hour: float | None, currency: str) -> str:
    time = f"{study_words.duration(study.gpu_seconds)} of GPU time"
    if price_per_gpu_hour is None:
        return time
    return f"{time}, {study.gpu_seconds / 3600 * price_per_gpu_hour:,.2f} {currency}"


def _gain(study: Study, recommended: Recommended | None) -> TargetGain:
    if recommended is not None and recommended.renewed is not None and recommended.state == "recommended":
        return _renewed_gain(recommended)
    result = study.result
    assert result is not None
    if result.verdict is Verdict.CONFIRMED and result.speedup is not None:
        return _measured("confirmed", "good", "By paired runs after the search.", result.speedup)
    is_kept = result.best.trial_number == result.baseline.trial_number
    if result.verdict is Verdict.TOO_BUSY:
        note = "not known" if result.speedup is None else words.gain_so_far(result.speedup)
        note += "; the baseline is kept for now" if is_kept else ""
        return TargetGain("too busy", "warn", f"{TOO_BUSY_STATE[:1].upper()}{TOO_BUSY_STATE[1:]}.", note=note)
    if result.verdict is Verdict.UNDECIDED and result.speedup is not None:
        is_open = result.undecided is None or result.undecided.more_pairs is not None
        return _undecided(result.speedup, is_kept, is_open)
    badge = "baseline kept" if is_kept else "faster of two, not confirmed"
    if result.speedup is not None:
        return TargetGain(
            badge, "quiet", "No candidate was confirmed to be faster.", note=_of_candidate(result.speedup)
        )
    if result.final_comparison is None:
        return TargetGain("baseline kept", "quiet", "No other configuration was feasible.", note="nothing to compare")
    open_verdict = result.verdict is Verdict.UNDECIDED
    note = "undecided: too few pairs" if open_verdict else "no candidate was close"
    return TargetGain(badge, "quiet", "No candidate was confirmed to be faster.", note=note)


def _undecided(speedup: Speedup, is_kept: bool, is_open: bool) -> TargetGain:
    """Return the gain of an undecided answer. `is_open`: whether more pairs may decide it."""
    explained = "More pairs may decide it." if is_open else "More pairs would not decide it."
    # The card names the kept baseline above: a gain beside it would seem to be the baseline's own.
    if is_kept:
        note = f"{_of_candidate(speedup)}; the baseline is kept for now"
        return TargetGain("undecided", "warn", explained, note=note)
    return _measured("undecided", "warn", explained, speedup)


def _of_candidate(speedup: Speedup) -> str:
    return f"the fastest candidate reached {words.figures(speedup)}"


def _renewed_gain(recommended: Recommended) -> TargetGain:
    first = recommended.renewed
    assert first is not None
    is_confirmed = first.verdict is Verdict.CONFIRMED
    # Whether the first study kept its baseline is not known here: a default that was faster in the pairs is no baseline.
    badge, tone = ("confirmed", "good") if is_confirmed else ("not confirmed", "quiet")
    kept = "" if recommended.newer else " and kept"
    gain = TargetGain(
        badge, tone, "On the hardware and software at that time.", note=f"re-measured{kept}", study_id=first.study_id
    )
    if not is_confirmed or first.speedup is None:
        return gain
    return replace(_measured(badge, tone, gain.explained, first.speedup), note=gain.note, study_id=gain.study_id)


def _measured(badge: str, tone: str, explained: str, speedup: Speedup) -> TargetGain:
    low, high = speedup.ci95
    return TargetGain(badge, tone, explained, f"{speedup.value:.2f}×", f"95 %: {low:.2f} to {high:.2f}")
