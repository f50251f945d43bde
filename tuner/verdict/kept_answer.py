"""Answer of an extended study whose newest final comparison decided nothing: what an earlier comparison confirmed stays.

A comparison that is undecided, or whose machine was too busy, says nothing against a gain that other pairs confirmed.
Whole steps that contradict the step times of a trial do, as the confirmed gain rests on such times, too. One that finds its
candidate not faster does if it paired the same two configurations and has at least as many undisturbed pairs: of two
equally good comparisons the newer one counts. The answer then names the one that it replaced.
"""

from datetime import datetime
from statistics import median

from shardtune.api_schemas.studies.study_result import FinalComparison, StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import ComparisonSummary


def stands(earlier: StudyResult, newest: StudyResult) -> bool:
    """Whether the result of an earlier final comparison is confirmed, and the newest one decided nothing against it."""
    if earlier.verdict is not Verdict.CONFIRMED:
        return False
    if newest.verdict is Verdict.NOT_FASTER:
        is_same = _compared_trials(newest) == _compared_trials(earlier)
        return not (is_same and _undisturbed_pairs(newest) >= _undisturbed_pairs(earlier))
    if newest.too_busy is None and newest.undecided is None:
        return False
    return not _contradicted_trials(newest) & {earlier.best.trial_number, earlier.baseline.trial_number}


def kept(confirmed: StudyResult, newest: StudyResult) -> StudyResult:
    """Return the result that an earlier final comparison of a study confirmed, with the reason why the newest one
    decided nothing. Counts of all runs of the study are those of the newest, and so is a projection (prediction for a
    larger cluster) that no busy machine distorts."""
    update: dict[str, object] = {
        "search_runs": newest.search_runs,
        "disturbed_search_runs": newest.disturbed_search_runs,
        "later_too_busy": newest.too_busy,
        "later_undecided": newest.undecided,
        "later_not_faster": _summary(newest, None) if newest.verdict is Verdict.NOT_FASTER else None,
    }
    # The study makes no further run of a kept answer, so that no larger budget would give it a sustained speed.
    if confirmed.sustained is not None:
        update["sustained"] = confirmed.sustained.model_copy(update={"remedy": None})
    compared, last = confirmed.final_comparison, newest.final_comparison
    if compared is not None and last is not None:
        cost = {"runs": last.runs, "gpu_seconds": last.gpu_seconds}
        update["final_comparison"] = compared.model_copy(update=cost)
    # Without an earlier one, the notes of the confirmed result say why nothing is projected.
    if newest.too_busy is None and confirmed.projection is not None and newest.projection is not None:
        update["projection"] = newest.projection
    return confirmed.model_copy(update=update)


def with_replaced(newest: StudyResult, earlier: StudyResult, decided_at: datetime | None) -> StudyResult:
    """Return a study's newest result, which replaces an earlier one, with the confirmed gain that it contradicts.

    `decided_at`: time at which the earlier result was stored.
    """
    if newest.verdict is Verdict.CONFIRMED:
        return newest
    is_confirmed = earlier.verdict is Verdict.CONFIRMED
    before = _summary(earlier, decided_at) if is_confirmed else earlier.confirmed_before
    return newest.model_copy(update={"confirmed_before": before})


def _summary(result: StudyResult, decided_at: datetime | None) -> ComparisonSummary:
    compared, paired = result.final_comparison, result.candidate or result.best
    return ComparisonSummary(
        trial_number=paired.trial_number,
        description=paired.description,
        baseline_number=result.baseline.trial_number,
        pairs=0 if compared is None else compared.pairs,
        undisturbed_pairs=_undisturbed_pairs(result),
        ratio=_median_ratio(result, compared),
        decided_at=decided_at,
    )


def _median_ratio(result: StudyResult, compared: FinalComparison | None) -> float | None:
    if result.speedup is not None:
        return result.speedup.value
    return median(compared.ratios) if compared is not None and compared.ratios else None


def _compared_trials(result: StudyResult) -> tuple[int, int]:
    """Numbers of the trial that was paired with the baseline, and of the baseline."""
    return (result.candidate or result.best).trial_number, result.baseline.trial_number


def _undisturbed_pairs(result: StudyResult) -> int:
    compared = result.final_comparison
    return 0 if compared is None else compared.pairs - compared.disturbed_pairs


def _contradicted_trials(newest: StudyResult) -> set[int]:
    """Numbers of the trials whose step times from short steps (with fewer micro batches) whole steps contradict."""
    if newest.undecided is None or not newest.undecided.is_extension_off:
        return set()
    off = {check.trial_number for check in newest.whole_steps if not check.is_confirmed and not check.is_disturbed}
    # Each step time may be right within its bound, and whole steps still put the baseline before its challenger.
    return off or {(newest.candidate or newest.best).trial_number}
