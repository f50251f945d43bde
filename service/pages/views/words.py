"""Clusters, workloads and outcomes in words."""

from api_schemas.hardware import Cluster
from api_schemas.studies import Study, StudyPhase, StudyResult, StudyState, Verdict
from api_schemas.trials import TrialState
from api_schemas.workload import Workload
from service.pages.figures import gib, percent

STATE_TONES = {
    StudyState.RUNNING: "busy",
    StudyState.PAUSED: "quiet",
    StudyState.COMPLETE: "good",
    StudyState.CANCELLED: "quiet",
    StudyState.FAILED: "bad",
}
TRIAL_TONES = {
    TrialState.WAITING: "quiet",
    TrialState.RUNNING: "busy",
    TrialState.COMPLETE: "good",
    TrialState.INFEASIBLE: "warn",
    TrialState.PRUNED: "quiet",
    TrialState.FAILED: "bad",
    TrialState.CANCELLED: "quiet",
}
FAILURES = {
    "oom": "out of memory",
    "over_limit": "over the memory limit",
    "illegal": "refused by the backend",
    "numerics": "trains something else",
    "crash": "crashed",
    "rank_lost": "a rank was lost",
    "no_progress": "made no progress",
    "deadline": "took too long",
    "worker_lost": "its worker was lost",
    "device": "its device was not fit",
    "suspect": "cannot be true",
    "setup": "could not be started",
}
_TIMES = 1.5
"""From here on a speed-up reads better as a factor than as per cent."""
ORIGINS = {
    "baseline": "your baseline",
    "default": "a documented default",
    "challenger": "a challenger of the incumbent",
    "sampler": "chosen by the search",
}
ENDS = FAILURES | {"complete": "complete", "released": "handed back by its worker", "cancelled": "cancelled"}


def cluster(value: Cluster) -> str:
    """`4 × 8 NVIDIA H100 80GB HBM3`, `2 CPU ranks`."""
    nodes = f"{value.nodes} × " if value.nodes > 1 else ""
    return (
        f"{nodes}{value.gpus_per_node} CPU ranks"
        if value.device == "cpu"
        else f"{nodes}{value.gpus_per_node} × {value.gpu}"
    )


def cluster_memory(value: Cluster) -> str:
    """Memory of one rank."""
    return f"{gib(value.memory_gib)} GiB each"


def workload(value: Workload) -> str:
    """`sequence 4,096 · global batch 256 · bf16-mixed`."""
    return f"sequence {value.sequence_length:,} · batch {value.global_batch:,} · {value.recipe.name}"


def verdict(study: Study) -> tuple[str, str]:
    """Tone and sentence of what is known about a study's answer."""
    result = study.result
    if result is None:
        return _unfinished(study)
    tone, sentence = _answer(result)
    if study.state in (StudyState.RUNNING, StudyState.PAUSED):
        return "busy", f"Being extended; so far: {sentence}"
    return tone, sentence


def _answer(result: StudyResult) -> tuple[str, str]:
    if result.verdict is Verdict.CONFIRMED and result.speedup is not None:
        low, high = result.speedup.ci95
        if result.speedup.value >= _TIMES:
            times = f"{result.speedup.value:.2f} times as fast as the baseline"
            return "good", f"Confirmed: {times} (95 % interval {low:.2f} to {high:.2f})."
        gain = percent(result.speedup.value - 1)
        return (
            "good",
            f"Confirmed: {gain} faster than the baseline (95 % interval {percent(low - 1)} to {percent(high - 1)}).",
        )
    if result.speedup is None:
        return "quiet", "Nothing was run in pairs: no other configuration came near this one. Keep it."
    low, high = result.speedup.ci95
    return "quiet", (
        f"No significant improvement: the fastest candidate came to {result.speedup.value:.2f}× "
        f"(95 % interval {low:.2f} to {high:.2f}{', which includes 1' if low <= 1 <= high else ''}). Keep the baseline."
    )


def _unfinished(study: Study) -> tuple[str, str]:
    match study.state:
        case StudyState.FAILED:
            return "bad", f"No answer: {study.reason or 'the study failed'}."
        case StudyState.CANCELLED:
            return "quiet", f"Cancelled before it had an answer{': ' + study.reason if study.reason else ''}."
        case StudyState.PAUSED:
            return "quiet", "Paused: no further run is given out until it is resumed."
    if study.phase is StudyPhase.CONFIRM:
        return "busy", "The search is over; the fastest and the baseline are being run again."
    if study.best_so_far is not None:
        return "busy", "Searching. The figures of the search are preliminary: the pairs at the end decide."
    return "busy", "Starting: nothing has been measured yet."
