"""Lines about the pairs of a final comparison: the speeds of a pair's two runs, their ratio, and why no pair follows."""

from collections.abc import Sequence

from shardtune.api_schemas.formatting import rate
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import SEED_ORIGINS, Run, RunPurpose, Trial, TrialOrigin, TrialState
from shardtune.tuner.verdict import too_busy
from shardtune.tuner.verdict.run_load import RunLoad, is_even

_Arm = tuple[Trial, Run]


def pair_lines(study: Study, trials: Sequence[Trial]) -> dict[int, str]:
    """Return a line about each complete pair of the current final comparison, by its comparison block: `pair 3: trial 7's
    1,622 against the baseline's 880 tokens/s/GPU, 1.84x`."""
    lines, counted = dict[int, str](), 0
    for block, arms in sorted(_complete_blocks(study, trials).items()):
        pair = _candidate_and_baseline(arms)
        if pair is None:
            continue
        left_out = _why_left_out(*pair)
        counted += left_out is None
        speeds = [_measurement(run).tokens_per_s_per_gpu for _, run in pair]
        candidate, baseline = (rate(speed) for speed in speeds)
        text = f"trial {pair[0][0].number}'s {candidate} against the baseline's {baseline} tokens/s/GPU, "
        text += f"{speeds[0] / speeds[1]:.2f}x"
        lines[block] = f"pair left out: {text}; {left_out}" if left_out else f"pair {counted}: {text}{_note(*pair)}"
    return lines


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
    if result.newest_verdict in (Verdict.CONFIRMED, Verdict.NOT_FASTER):
        return f"{ended}: enough for the verdict"
    if _is_won_but_disturbed(result, most):
        return f"{ended}: the candidate won all of them, and only an undisturbed pair can confirm it"
    return None


def _is_won_but_disturbed(result: StudyResult, most_pairs: int) -> bool:
    compared, busy = result.final_comparison, result.too_busy
    if compared is None or busy is None or busy.rests_on != "pairs":
        return False
    # So many pairs that were left out end a comparison, too.
    if not too_busy.may_go_on(compared.uneven_pairs, most_pairs):
        return False
    return compared.disturbed_pairs == compared.pairs and all(ratio > 1 for ratio in compared.ratios)


def _complete_blocks(study: Study, trials: Sequence[Trial]) -> dict[int, list[_Arm]]:
    """Return the runs of each complete comparison block of the current final comparison, by the block's number."""
    blocks = dict[int, list[_Arm]]()
    for trial in trials:
        for run in trial.runs:
            if _is_compared(study, run) and run.comparison_block is not None:
                blocks.setdefault(run.comparison_block, []).append((trial, run))
    if not _is_over(study, trials):
        # The runs of a block are planned one by one: the newest block may lack some of its trials.
        blocks.pop(max(blocks, default=0), None)
    return {block: arms for block, arms in blocks.items() if all(_is_measured(run) for _, run in arms)}


def _is_compared(study: Study, run: Run) -> bool:
    is_current = run.final_comparison in (None, study.final_comparison)
    return run.purpose == RunPurpose.VALIDATION and not run.is_whole_step and is_current


def _is_over(study: Study, trials: Sequence[Trial]) -> bool:
    """Whether no further run belongs to the current final comparison: the study is complete, or a run that follows the
    comparison is open."""
    open_runs = [run for trial in trials for run in trial.runs if run.state.is_open]
    return study.state is StudyState.COMPLETE or any(not _is_compared(study, run) for run in open_runs)


def _is_measured(run: Run) -> bool:
    return run.state is TrialState.COMPLETE and run.measurement is not None


def _candidate_and_baseline(arms: Sequence[_Arm]) -> tuple[_Arm, _Arm] | None:
    """Return the candidate's and the baseline's run of a comparison block; None if the block is no pair of these two."""
    if len(arms) != 2:
        return None
    first, second = sorted(arms, key=lambda arm: _seed_rank(arm[0].origin), reverse=True)
    # Two documented defaults run beside each other to find the faster one, which becomes the baseline.
    is_pair = _seed_rank(second[0].origin) < _seed_rank(first[0].origin)
    return (first, second) if is_pair else None


def _seed_rank(origin: TrialOrigin) -> int:
    return SEED_ORIGINS.index(origin) if origin in SEED_ORIGINS else len(SEED_ORIGINS)


def _why_left_out(candidate: _Arm, baseline: _Arm) -> str | None:
    """Return why a pair does not count; None if it does."""
    if _machine(candidate[1]) != _machine(baseline[1]):
        return "its two runs were on different machines"
    loads = [RunLoad.of(_measurement(run)) for _, run in (candidate, baseline)]
    return None if is_even(*loads) else "its two runs were not disturbed alike"


def _note(candidate: _Arm, baseline: _Arm) -> str:
    disturbed = [_measurement(run).disturbed is not None for _, run in (candidate, baseline)]
    return " (both runs disturbed alike)" if all(disturbed) else ""


def _machine(run: Run) -> tuple[str, frozenset[str]]:
    conditions = _measurement(run).conditions
    return (
        run.attempts[-1].worker if run.attempts else "",
        frozenset(conditions.hosts if conditions is not None else ()),
    )


def _measurement(run: Run) -> Measurement:
    assert run.measurement is not None
    return run.measurement
