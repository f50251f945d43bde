"""Reason why an extended study still has the answer that an earlier final comparison confirmed, or has it no longer."""

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.verdicts import BusyMachine, ComparisonSummary, OpenVerdict
from shardtune.service.wording.answers.trust_line import Trust

_LIMITS = {
    StudyReasonCode.GPU_SECONDS_USED: "budget.max_gpu_seconds",
    StudyReasonCode.WALL_SECONDS_USED: "budget.max_wall_seconds",
}
"""Names of the limits that may end a final comparison."""


def kept_answer(result: StudyResult) -> list[Trust]:
    """Return the reason why an extended study still has the answer of an earlier final comparison, or has replaced it
    although it was confirmed, as a list; empty if no comparison contradicts the answer."""
    if result.confirmed_before is not None:
        return [_replaced(result.confirmed_before)]
    if result.later_not_faster is not None:
        return [_after_not_faster(result, result.later_not_faster)]
    if result.later_too_busy is not None:
        return [_after_too_busy(result.later_too_busy)]
    return [] if result.later_undecided is None else [_after_undecided(result.later_undecided)]


def _after_too_busy(busy: BusyMachine) -> Trust:
    kind = "runs in pairs" if busy.rests_on == "pairs" else "search runs"
    brief = "the machine was too busy to compare again after the study was extended, so its confirmed answer stays"
    text = f"{brief}: {busy.disturbed_runs} of {busy.runs} {kind} were disturbed; a new study on a quiet machine may find a faster one"
    return Trust("warn", text, brief)


def _after_undecided(verdict: OpenVerdict) -> Trust:
    brief = "the new comparison after the study was extended was undecided, so its confirmed answer stays"
    return Trust("warn", f"{brief}: {_open_cause(verdict)}", brief)


def _after_not_faster(result: StudyResult, newest: ComparisonSummary) -> Trust:
    brief = (
        "the new comparison after the study was extended found its candidate not faster, and the confirmed answer stays"
    )
    compared = f"trial {newest.trial_number} against trial {newest.baseline_number}"
    seen = "" if newest.ratio is None else f", {newest.ratio:.2f}× in {_pairs(newest)}"
    is_same = (newest.trial_number, newest.baseline_number) == (
        result.best.trial_number,
        result.baseline.trial_number,
    )
    why = "it compared other configurations"
    if is_same and result.final_comparison is not None:
        earlier = result.final_comparison.pairs - result.final_comparison.disturbed_pairs
        why = f"it contradicts the answer, which rests on more undisturbed pairs ({earlier})"
    return Trust("warn", f"{brief}: {compared}{seen}; {why}", brief)


def _replaced(earlier: ComparisonSummary) -> Trust:
    """Return what an earlier comparison confirmed that newer runs of the study contradict."""
    brief = "an earlier comparison of this study confirmed a gain, and newer runs contradict it"
    gain = "" if earlier.ratio is None else f" as {earlier.ratio:.2f}× as fast as trial {earlier.baseline_number}"
    date = "" if earlier.decided_at is None else f", on {earlier.decided_at:%Y-%m-%d %H:%M} UTC"
    text = (
        f"{brief}: trial {earlier.trial_number} ({earlier.description}) was confirmed{gain} by {_pairs(earlier)}{date}"
    )
    return Trust("warn", text, brief)


def _pairs(comparison: ComparisonSummary) -> str:
    return f"{counted(comparison.pairs, 'pair')} ({comparison.undisturbed_pairs} undisturbed)"


def _open_cause(verdict: OpenVerdict) -> str:
    """Return why the newest final comparison was undecided, with its numbers of pairs and the limit that ended it."""
    ended = "" if verdict.ended_by is None else f"; {_LIMITS[verdict.ended_by]} ended it early"
    if not verdict.pairs:
        return f"no pair of its candidate and the baseline was completed{ended}"
    if verdict.is_extension_off:
        return "whole steps contradict the extended step times of its pairs"
    return f"its candidate won {verdict.won_pairs} of {counted(verdict.pairs, 'pair')}{ended}"
