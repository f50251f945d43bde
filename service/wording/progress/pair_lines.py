"""Lines about the pairs of a final comparison: the speeds of a pair's two runs, their ratio, and why no pair follows."""

from collections.abc import Sequence

from shardtune.api_schemas.formatting import rate
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import Trial, TrialOrigin
from shardtune.service.wording.progress.compared_pairs import (
    ComparedPair,
    compared_runs,
    complete_pairs,
    is_comparison_over,
)
from shardtune.tuner.verdict import too_busy


def pair_lines(study: Study, trials: Sequence[Trial]) -> dict[int, str]:
    """Return a line about each complete pair of the current final comparison, by its comparison block: `pair 3 of at most
    24: trial 7's 1,622 against the baseline's 880 tokens/s/GPU, 1.84x`."""
    lines, counted, most = dict[int, str](), 0, study.spec.budget.max_pairs
    pairs = complete_pairs(compared_runs(study, trials), is_over=is_comparison_over(study, trials))
    for block, pair in pairs.items():
        left_out = pair.left_out_reason
        counted += left_out is None
        speeds = [run.measurement.tokens_per_s_per_gpu for run in pair]
        candidate, baseline = (rate(speed) for speed in speeds)
        text = f"trial {pair.candidate.trial_number}'s {candidate} against the baseline's {baseline} tokens/s/GPU, "
        text += f"{speeds[0] / speeds[1]:.2f}x"
        number = f"pair {counted} of at most {most}"
        lines[block] = f"pair left out: {text}; {left_out}" if left_out else f"{number}: {text}{_note(pair)}"
    return lines


def paired_trials(study: Study, trials: Sequence[Trial]) -> str:
    """Name the two trials of the newest pair, and say why the candidate is one of them. Empty before the first complete pair."""
    pairs = complete_pairs(compared_runs(study, trials), is_over=is_comparison_over(study, trials))
    if not pairs:
        return ""
    pair = pairs[max(pairs)]
    # Screening chose it. In a study of the service, which confirms an answer, nothing was chosen.
    is_chosen = study.system_study is None and any(
        run.trial_number not in (pair.candidate.trial_number, pair.baseline.trial_number)
        for run in compared_runs(study, trials)
    )
    why = ", the fastest candidate so far," if is_chosen else ""
    default = " (the fastest documented default)" if pair.baseline.origin is TrialOrigin.DEFAULT else ""
    return f"pairs: trial {pair.candidate.trial_number}{why} against the baseline, trial {pair.baseline.trial_number}{default}"


def end_of_pairs(study: Study) -> str | None:
    """Say why a final comparison ended before its maximum number of pairs. None if it took all, or if the result does
    not show the reason."""
    result, most = study.result, study.spec.budget.max_pairs
    compared = result.final_comparison if result is not None else None
    if result is None or compared is None or study.state is not StudyState.COMPLETE:
        return None
    # An extension may keep an earlier answer, whose comparison is not the one that has just ended.
    if compared.number != study.final_comparison or not 0 < compared.pairs < most:
        return None
    ended = f"the final comparison ended after {compared.pairs} of at most {most} pairs"
    # With the pairs that were left out, the runs above are more than those of the pairs that count.
    ended += f" ({compared.uneven_pairs} more were left out)" if compared.uneven_pairs else ""
    if result.newest_verdict in (Verdict.CONFIRMED, Verdict.NOT_FASTER):
        return f"{ended}: enough for the verdict"
    if _is_won_but_disturbed(result, most):
        return f"{ended}: the candidate won all of them; more disturbed pairs cannot confirm it, an undisturbed one can"
    return None


def _is_won_but_disturbed(result: StudyResult, most_pairs: int) -> bool:
    compared, busy = result.final_comparison, result.too_busy
    if compared is None or busy is None or busy.rests_on != "pairs":
        return False
    # So many pairs that were left out end a comparison, too.
    if not too_busy.may_go_on(compared.uneven_pairs, most_pairs):
        return False
    return compared.disturbed_pairs == compared.pairs and all(ratio > 1 for ratio in compared.ratios)


def _note(pair: ComparedPair) -> str:
    is_disturbed = all(run.measurement.disturbed is not None for run in pair)
    return " (both disturbed, with about equal load on average)" if is_disturbed else ""
