"""Reasons for and against believing the answer of a study."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from api_schemas.studies import Study, StudyResult
from service import wording
from service.pages.figures import backend_name
from service.pages.views.freshness import Freshness
from tuner.space.flat import Flat
from tuner.stopping import MIN_TRIALS

_NOISY = 0.1
"""Relative spread of the pairs' ratios beyond which a reader should know of it."""
_RESTART_TONES = {"passed": "good", "failed": "bad", "not_checked": "warn"}


@dataclass(frozen=True)
class Trust:
    """One reason for or against believing the answer."""

    tone: str
    text: str


def trust(study: Study, fresh: Freshness, complete: Sequence[Flat]) -> tuple[Trust, ...]:
    """All of them, of a study with an answer; `complete`: the configurations that were measured."""
    result = study.result
    if result is None:
        return ()
    found = [_pairs(result), *_thin(study, complete), _numerics(result, complete)]
    if result.restart is not None:
        found.append(Trust(_RESTART_TONES[result.restart.outcome], wording.restarted(result.restart)))
    tones = {"fresh": "good", "stale": "bad", "unchecked": "quiet"}
    found.append(Trust(tones[fresh.word], fresh.why))
    return (*found, *(Trust("quiet", note) for note in result.notes))


def _pairs(result: StudyResult) -> Trust:
    if result.speedup is None:
        runs = "one run" if result.best.runs == 1 else f"{result.best.runs} runs"
        return Trust("warn", f"measured in {runs}, without a comparison in pairs")
    ratios = result.speedup.ratios
    text = f"{len(ratios)} pairs of fresh runs (candidate and baseline in turn, each in new processes), which the search did not see"
    if len(ratios) > 1:
        text += f": from {min(ratios):.2f}× to {max(ratios):.2f}×"
    is_noisy = len(ratios) > 1 and stdev(ratios) / fmean(ratios) > _NOISY
    if is_noisy:
        text += "; they lie far apart, so other programs may have used the machine"
    return Trust("warn" if is_noisy else "good", text)


def _thin(study: Study, complete: Sequence[Flat]) -> list[Trust]:
    """A warning where a search was too short to have seen much."""
    if study.errand is not None or len(complete) >= MIN_TRIALS:
        return []
    sizes = {table["micro_batch"] for table in complete}
    same = f", all of them with micro batch {next(iter(sizes))}" if len(sizes) == 1 else ""
    return [
        Trust(
            "warn", f"a short search: {len(complete)} configurations were measured{same}; a larger budget may find more"
        )
    ]


def _numerics(result: StudyResult, complete: Sequence[Flat]) -> Trust:
    if any("no other backend" in note for note in result.notes):
        return Trust("warn", "only one backend could run, so no other confirms that it trains the same thing")
    others = sorted(
        {backend_name(str(table["backend"])) for table in complete} - {backend_name(result.best.config.backend)}
    )
    named = " and ".join(others) or "another backend"
    return Trust("good", f"it trains the same thing: losses, gradient norms and weights agree with those of {named}")
