"""The answer of a study: for a person as a few lines, for a program as one JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

from api_schemas.studies import Contender, Study, StudyResult, Verdict
from service import wording


def as_json(study: Study, result: StudyResult, exports: Sequence[str] | None = None) -> dict[str, Any]:
    """The object of `--json`; docs/cli.md describes it."""
    answer: dict[str, Any] = {
        "study_id": study.study_id,
        "best": _contender(result.best),
        "baseline": _contender(result.baseline),
        "speedup": None,
        "verdict": result.verdict.value,
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
    rows.append(("trials", _counts(study)))
    rows += why_not
    rows += [("note", note) for note in result.notes]
    if exports:
        rows.append(("files", ", ".join(exports)))
    if how:
        rows.append(("run it", how))
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def _describe(contender: Contender) -> str:
    parts = [f"{wording.rate(contender.tokens_per_s_per_gpu)} tokens/s/GPU"]
    if contender.peak_reserved_gib is not None:
        parts.append(f"{wording.gib(contender.peak_reserved_gib)} GiB reserved")
    if contender.peak_allocated_gib is not None:
        parts.append(f"{wording.gib(contender.peak_allocated_gib)} GiB allocated at the peak")
    if contender.mfu is not None:
        parts.append(f"MFU {contender.mfu:.1%}")
    runs = f"{contender.runs} runs" if contender.runs != 1 else "1 run"
    return f"{contender.description}: {', '.join(parts)} ({runs})"


def _speedup(result: StudyResult) -> str:
    verdict = "confirmed" if result.verdict is Verdict.CONFIRMED else "no significant improvement: keep the baseline"
    if result.speedup is None:
        return f"nothing to compare, {verdict}"
    low, high = result.speedup.ci95
    pairs = f"95 % interval {low:.2f} to {high:.2f}, {result.speedup.pairs} pairs"
    who = "best" if result.verdict is Verdict.CONFIRMED else "candidate"
    return f"{result.speedup.value:.2f}×, {who} over baseline in paired runs ({pairs}), {verdict}"


def _counts(study: Study) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in trial_counts(study.trials).items())
    if study.rejected:
        counts += f", and {study.rejected} configurations refused before they ran"
    counts += f"; search ended: {study.reason}" if study.reason else ""
    return counts
