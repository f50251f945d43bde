"""Answer of an extended study whose newest final comparison decided nothing: what an earlier comparison confirmed stays.

A comparison that is undecided, or whose machine was too busy, says nothing against a gain that other pairs confirmed.
Whole steps that contradict the step times of a trial do, as the confirmed gain rests on such times, too.
"""

from shardtune.api_schemas.studies.study_result import StudyResult, Verdict


def stands(earlier: StudyResult, newest: StudyResult) -> bool:
    """Whether the result of an earlier final comparison is confirmed, and the newest one decided nothing against it."""
    if earlier.verdict is not Verdict.CONFIRMED or (newest.too_busy is None and newest.undecided is None):
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
    }
    compared, last = confirmed.final_comparison, newest.final_comparison
    if compared is not None and last is not None:
        cost = {"runs": last.runs, "gpu_seconds": last.gpu_seconds}
        update["final_comparison"] = compared.model_copy(update=cost)
    # Without an earlier one, the notes of the confirmed result say why nothing is projected.
    if newest.too_busy is None and confirmed.projection is not None and newest.projection is not None:
        update["projection"] = newest.projection
    return confirmed.model_copy(update=update)


def _contradicted_trials(newest: StudyResult) -> set[int]:
    """Numbers of the trials whose step times from short steps (with fewer micro batches) whole steps contradict."""
    if newest.undecided is None or not newest.undecided.is_extension_off:
        return set()
    off = {check.trial_number for check in newest.whole_steps if not check.is_confirmed and not check.is_disturbed}
    # Each step time may be right within its bound, and whole steps still put the baseline before its challenger.
    return off or {(newest.candidate or newest.best).trial_number}
