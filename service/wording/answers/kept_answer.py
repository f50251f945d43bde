"""Reason why an extended study still has the answer that an earlier final comparison confirmed."""

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.verdicts import BusyMachine, OpenVerdict
from shardtune.service.wording.answers.trust_line import Trust


def kept_answer(result: StudyResult) -> list[Trust]:
    """Return the reason why an extended study still has the answer of an earlier final comparison, as a list; empty if
    its answer is that of the newest one."""
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


def _open_cause(verdict: OpenVerdict) -> str:
    """Return why the newest final comparison was undecided, with its numbers of pairs."""
    if not verdict.pairs:
        return "no pair of its candidate and the baseline was completed"
    if verdict.is_extension_off:
        return "whole steps contradict the extended step times of its pairs"
    return f"its candidate won {verdict.won_pairs} of {counted(verdict.pairs, 'pair')}"
