"""The answer of a study: for a person as a few lines, for a program as one JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardtune.api_schemas.studies import Contender, Promotion, Study, StudyResult, Verdict
from shardtune.service.wording import study_words


def as_json(study: Study, result: StudyResult, exports: Sequence[str] | None = None) -> dict[str, Any]:
    """The object of `--json`; docs/cli.md describes it."""
    answer: dict[str, Any] = {
        "study_id": study.study_id,
        "best": _contender(result.best),
        "baseline": _contender(result.baseline),
        "speedup": None,
        "verdict": result.verdict.value,
        "promotion": result.promotion.model_dump(mode="json", exclude={"ratios"}) if result.promotion else None,
        "restart": result.restart.model_dump(mode="json") if result.restart else None,
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
    """Trials by state: complete and infeasible always, others where there are any."""
    counts = {"complete": trials.get("complete", 0), "infeasible": trials.get("infeasible", 0)}
    return counts | {state: count for state, count in trials.items() if count and state not in counts}


def as_text(
    study: Study,
    result: StudyResult,
    why_not: Sequence[tuple[str, str]] = (),
    exports: Sequence[str] = (),
    how: str = "",
) -> str:
    """The same for a person; `why_not` are rows about what is not feasible."""
    rows = [("best", _describe(result.best)), ("baseline", _describe(result.baseline))]
    if result.candidate is not None:
        rows.append(("candidate", _describe(result.candidate) + " (not confirmed)"))
    rows.append(("speed-up", _speedup(result)))
    if result.promotion is not None:
        rows.append(("promotion", _promotion(result.promotion)))
    if result.restart is not None:
        rows.append(("restart", study_words.restarted(result.restart)))
    rows.append(("trials", _counts(study)))
    rows += why_not
    rows += [("note", note) for note in result.notes]
    if study.state.is_open:
        rows.append(("note", f"the study is being extended ({study.state.value}); this is its answer so far"))
    if exports:
        rows.append(("files", ", ".join(exports)))
    if how:
        rows.append(("run it", how))
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def _describe(contender: Contender) -> str:
    parts = [f"{study_words.rate(contender.tokens_per_s_per_gpu)} tokens/s/GPU"]
    if contender.peak_reserved_gib is not None:
        parts.append(f"{study_words.gib(contender.peak_reserved_gib)} GiB reserved")
    if contender.peak_allocated_gib is not None:
        parts.append(f"{study_words.gib(contender.peak_allocated_gib)} GiB allocated at the peak")
    if contender.mfu is not None:
        parts.append(f"MFU {contender.mfu:.1%}")
    runs = f"{contender.runs} runs" if contender.runs != 1 else "1 run"
    if contender.spread is not None:
        runs += ", {} to {}".format(*map(study_words.rate, contender.spread))
    return f"{contender.description}: {', '.join(parts)} ({runs})"


def _speedup(result: StudyResult) -> str:
    if result.speedup is None:
        why = "nothing to compare" if result.promotion is None else "too few pairs"
        return f"{why}: keep the baseline"
    low, high = result.speedup.ci95
    ratio = f"{result.speedup.value:.2f}x [{low:.2f}, {high:.2f}] over baseline"
    if result.verdict is Verdict.CONFIRMED:
        return f"{ratio}, confirmed in {result.speedup.pairs} pairs of fresh runs (95 % interval)"
    return f"no significant improvement: keep the baseline (candidate {ratio} in {result.speedup.pairs} pairs of fresh runs)"


def _promotion(promotion: Promotion) -> str:
    who = "1 candidate" if len(promotion.candidates) == 1 else f"{len(promotion.candidates)} candidates"
    return f"{who} and the baseline run again: {promotion.runs} runs, {promotion.gpu_seconds:,.0f} GPU-seconds"


def _counts(study: Study) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in trial_counts(study.trials).items())
    if study.rejected:
        counts += f", and {study.rejected} configurations refused before they ran"
    counts += f"; search ended: {study.reason}" if study.reason else ""
    return counts
