"""Format a study's answer: a few lines for a person, one JSON object for a program."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, FinalComparison, StudyResult
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import Rejection, Trial, TrialState
from shardtune.service.wording import recipe_words, study_words
from shardtune.service.wording.answers.how_measured import speed_reasons
from shardtune.service.wording.answers.trust_line import INTERVAL, Trust
from shardtune.service.wording.answers.verdict_line import verdict_text
from shardtune.service.wording.disambiguate import describe_among
from shardtune.service.wording.progress.trial_lines import origin_note
from shardtune.service.wording.reasons import with_speeds
from shardtune.service.wording.result_runs import ResultRuns, result_runs
from shardtune.service.wording.targets import projection_words
from shardtune.service.wording.trust import trust

_MARKS = {"good": "+", "warn": "!", "bad": "-", "quiet": " "}
"""Character printed before each reason, by the reason's tone: it speaks for the answer, is a warning, speaks against
the answer, or is neutral."""
_ORDER = ("bad", "warn", "good")
"""Order in which reasons are printed, by their tone; those that speak against the answer come first."""


def as_json(
    study: Study, result: StudyResult, trials: Sequence[Trial] = (), exports: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the object that `--json` prints; docs/reference/cli.md describes it."""
    believed = reasons(study, result, trials)
    answer: dict[str, Any] = {
        "study_id": study.study_id,
        "best": _contender(result.best),
        "baseline": _contender(result.baseline),
        "speedup": None,
        "verdict": result.verdict.value,
        "undecided": result.undecided.model_dump(mode="json") if result.undecided else None,
        "too_busy": result.too_busy.model_dump(mode="json") if result.too_busy else None,
        "against_defaults": [row.model_dump(mode="json") for row in result.against_defaults],
        "trust": [{"tone": reason.tone, "text": reason.text} for reason in believed],
        "final_comparison": result.final_comparison.model_dump(mode="json", exclude={"ratios"})
        if result.final_comparison
        else None,
        "whole_steps": [check.model_dump(mode="json") for check in result.whole_steps],
        "search_runs": {"measured": result.search_runs, "disturbed": result.disturbed_search_runs},
        "resume_check": result.resume_check.model_dump(mode="json") if result.resume_check else None,
        "sustained": result.sustained.model_dump(mode="json") if result.sustained else None,
        "projection": result.projection.model_dump(mode="json") if result.projection else None,
        "recipes": [recipe.model_dump(mode="json") for recipe in result.recipes],
        "trials": trial_counts(study.trials),
    }
    if result.speedup is not None:
        answer["speedup"] = {"value": result.speedup.value, "ci95": list(result.speedup.ci95)}
    if result.candidate is not None:
        answer["candidate"] = _contender(result.candidate)
    if exports is not None:
        answer["exports"] = list(exports)
    return answer


def _contender(contender: Contender) -> dict[str, Any]:
    return {
        "config": contender.config.model_dump(mode="json"),
        "tokens_per_s_per_gpu": contender.tokens_per_s_per_gpu,
        "peak_allocated_gib": contender.peak_allocated_gib,
        "peak_reserved_gib": contender.peak_reserved_gib,
    }


def trial_counts(trials: Mapping[str, int]) -> dict[str, int]:
    """Count trials by state. Complete and infeasible trials are always counted; other states appear only if a trial
    has them."""
    # These two always, so that a script can rely on their keys.
    counts = {"complete": trials.get("complete", 0), "infeasible": trials.get("infeasible", 0)}
    return counts | {state: count for state, count in trials.items() if count and state not in counts}


def reasons(study: Study, result: StudyResult, trials: Sequence[Trial]) -> tuple[Trust, ...]:
    """Return the reasons for and against believing the answer of a study; they are the same that the study's page
    shows."""
    # `result` may be newer than the study's own: a running extension keeps the previous answer.
    return trust(study.model_copy(update={"result": result}), result_runs(study, result, trials))


def as_text(
    study: Study,
    result: StudyResult,
    trials: Sequence[Trial] = (),
    rejections: Sequence[Rejection] = (),
    exports: Sequence[str] = (),
    how: str = "",
) -> str:
    """Format the answer for a person: the verdict first, the reasons to believe it, then how it was measured."""
    stored = result_runs(study, result, trials)
    believed = reasons(study, result, trials)
    rows = [("verdict", verdict_text(result)), *_contender_rows(result, trials)]
    arguments = sorted(filter(_is_argument, believed), key=lambda reason: _ORDER.index(reason.tone))
    rows += _labelled("trust", [f"{_MARKS[reason.tone]} {reason.shown}" for reason in arguments])
    rows += _labelled("measured", _how_measured(result, believed, stored))
    rows.append(("trials", _trial_counts_text(study)))
    rows += study_words.failure_rows(trials, rejections)
    rows += _recipe_rows(result)
    if result.projection is not None:
        rows += projection_words.rows(result.projection)
    if study.state.is_open:
        rows.append(("note", f"the study is being extended ({study.state.value}); this is its previous answer"))
    if exports:
        rows.append(("files", ", ".join(exports)))
    if how:
        rows.append(("run it", how))
    # 12: the longest label, `infeasible`, and a gap; a longer label would shift its own row.
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def _recipe_rows(result: StudyResult) -> list[tuple[str, str]]:
    """Return rows about the recipes (other precisions or optimizers, float8) that the study compared. No such recipe
    replaces the study's answer."""
    rows = []
    for recipe in result.recipes:
        texts = [f"{_MARKS[line.tone]} {line.text}" for line in recipe_words.lines(recipe)]
        rows += [("recipe", f"{recipe.name}, another training than the answer"), *(("", text) for text in texts)]
    return rows


def _labelled(label: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(label if at == 0 else "", line) for at, line in enumerate(lines)]


def _contender_rows(result: StudyResult, trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """Return a row for the recommended configuration with its speed, and a row for the configuration that it was
    compared with. A remark says so where the gain is not the quotient of the two speeds."""
    is_baseline = result.best.trial_number == result.baseline.trial_number
    speed = f"{study_words.rate(result.best.tokens_per_s_per_gpu)} tokens/s/GPU"
    kept = "the baseline for now, " if result.undecided or result.too_busy else "the baseline, "
    name = partial(describe_among, trials=trials)
    rows = [("best", f"{kept if is_baseline else ''}{_describe(name(result.best), result.best, speed)}")]
    if not is_baseline:
        today, origin = result.baseline, _origin(result.baseline, trials)
        speed = f"{study_words.rate(today.tokens_per_s_per_gpu)} tokens/s/GPU"
        rows.append(("baseline", _describe(f"{name(today)}{origin}", today, speed) + _gain_remark(result)))
    if result.candidate is not None:
        rows.append(("candidate", _describe(name(result.candidate), result.candidate)))
    return rows


def _gain_remark(result: StudyResult) -> str:
    """Return a remark for a gain that is not the quotient of the speeds of best and baseline; empty if it is."""
    if result.speedup is None:
        return ""
    quotient = result.best.tokens_per_s_per_gpu / result.baseline.tokens_per_s_per_gpu
    is_equal = f"{quotient:.2f}" == f"{result.speedup.value:.2f}"
    return "" if is_equal else "; the gain is the median of the pairs, not the quotient of these speeds"


def _origin(baseline: Contender, trials: Sequence[Trial]) -> str:
    """Return a note in brackets that says where a baseline comes from; empty if that is not known."""
    return next((origin_note(trial.origin) for trial in trials if trial.number == baseline.trial_number), "")


def _is_argument(reason: Trust) -> bool:
    return reason.tone != "quiet" and bool(reason.shown)


def _how_measured(result: StudyResult, believed: Sequence[Trust], stored: ResultRuns) -> list[str]:
    """Return the lines behind an answer's figures: numbers of pairs and runs, speeds, and further remarks."""
    others = [reason for reason in believed if reason.brief is not None or not _is_argument(reason)]
    # The verdict states the interval.
    others = [reason for reason in others if reason.subject != INTERVAL]
    lines = [reason.text for reason in with_speeds(believed, others, speed_reasons(result, stored))]
    return lines + ([_final_comparison(result.final_comparison)] if result.final_comparison is not None else [])


def _describe(name: str, contender: Contender, *figures: str) -> str:
    """Describe a configuration in one line: its name, the given figures and its peak memory."""
    parts = list(figures)
    if contender.peak_reserved_gib is not None:
        parts.append(f"{study_words.memory(contender.peak_reserved_gib)} reserved")
    if contender.peak_allocated_gib is not None:
        parts.append(f"{study_words.memory(contender.peak_allocated_gib)} allocated at the peak")
    if contender.mfu is not None and figures:
        parts.append(f"MFU {contender.mfu:.1%}")
    return f"{name}: {', '.join(parts)}" if parts else name


def _final_comparison(final_comparison: FinalComparison) -> str:
    runs = counted(final_comparison.runs, "validation run")
    # The costs are those of all final comparisons of the study, which are numbered from 1: an extension compares again.
    again = "" if final_comparison.number <= 1 else " in all final comparisons of the study"
    return f"all configurations run again took {runs}{again}, failed ones included: {final_comparison.gpu_seconds:,.0f} GPU-seconds"


def _trial_counts_text(study: Study) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in trial_counts(study.trials).items())
    if study.rejected:
        counts += f", and {counted(study.rejected, 'configuration')} rejected before they ran"
    return f"{counts}; {_reason_text(study)}" if study.reason else counts


def _reason_text(study: Study) -> str:
    """Return the reason that is stored with a study with an answer: why its extension failed or waits, or why its
    search ended."""
    if study.state is StudyState.FAILED:
        return f"extending the study failed: {study.reason}"
    # A search that goes on has a reason only while it waits for a worker, and the reason says so.
    is_searching = study.state.is_open and study.phase is StudyPhase.SEARCH
    return study.reason or "" if is_searching else f"search ended: {study.reason}"


def study_row(study: Study) -> str:
    """Format a study as one row of the list of studies."""
    done = sum(count for state, count in study.trials.items() if not TrialState(state).is_open)
    state = f"{study.state.value} ({study.phase.value})" if study.state is StudyState.RUNNING else study.state.value
    state += ", deleted" if study.deleted_at is not None else ""
    return f"{study.study_id}  {state:<17}  {study.spec.model.name}  {counted(done, 'trial')}  {study.created_at:%Y-%m-%d %H:%M}"


def study_text(study: Study, trials: Sequence[Trial] = ()) -> str:
    """Format the current state of a study, with the reasons to believe its result that its trials give."""
    lines = [study_row(study)]
    best = study.best_so_far
    if study.result is not None:
        lines.append(as_text(study, study.result, trials))
    elif best is not None:
        name = describe_among(best, trials)
        lines.append(f"best so far: {name}: {study_words.rate(best.tokens_per_s_per_gpu)} tokens/s/GPU")
    # With a result, its own rows already include the reason why the search ended.
    if study.result is None and study.reason is not None:
        lines.append(study.reason)
    return "\n".join(lines)
