"""Descriptions of clusters, workloads and outcomes."""

from statistics import median
from typing import assert_never

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.studies.verdicts import TOO_BUSY_STATE
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.pages.views.purpose import Purpose
from shardtune.service.wording import cluster_words, study_words
from shardtune.service.wording.answers import disturbances
from shardtune.service.wording.answers.trust_line import TOO_BUSY
from shardtune.service.wording.progress import activity_words

STATE_TONES = {
    StudyState.WAITING: "warn",
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
    "illegal": "rejected by the backend",
    "numerics": "losses differ from the reference",
    "crash": "crashed",
    "rank_lost": "a rank was lost",
    "no_progress": "made no progress",
    "deadline": "took too long",
    "worker_lost": "its worker was lost",
    "node_lost": "one of its hosts was lost",
    "device": "its device is faulty",
    "suspect": "implausible measurement",
    "disturbed": "disturbed",
    "setup": "could not be started",
}
_TO_FIT = "Sharding (ZeRO, FSDP), more ranks, checkpointing or a smaller micro batch need less memory. The search tries them by itself."
ADVICE = {
    "oom": _TO_FIT,
    "over_limit": _TO_FIT,
    "rank_lost": (
        "A signal from outside ended the process. SIGKILL most often comes from the kernel when host memory runs out "
        "(see dmesg on the worker), sometimes from an administrator or a scheduler. If only one configuration is hit, give "
        "the host more memory; if all are, check the machine."
    ),
    "crash": "The traceback names the line. Exclude the configuration with the study's space, or update the library.",
    "worker_lost": "The worker or its network failed; see the worker's log. Start it again, and add trials.",
    "node_lost": "The message names the host. Its runs are repeated automatically, on spare hosts of the worker if it has some.",
    "no_progress": "Ranks waited for each other. Check the worker for a stuck device or network, then add trials.",
    "device": "Repair the device as the message says before you give it more work.",
    "setup": "The worker could not start the trial: the message names the missing part.",
}
"""Advice for a failed trial, by the kind of its failure. Kinds without an entry need no advice."""
_FASTER_FOR_NOW = "Until another study decides, the one with the higher median speed is recommended."
_EITHER = "Either will do; the one with the higher median speed is recommended."
"""Sentences about the recommendation of a study in which no configuration was confirmed as faster, and whose user
stated no baseline that could be kept."""
ORIGINS = {
    "baseline": "your baseline",
    "default": "the backend's documented default",
    "challenger": "a challenger",
    "sampler": "chosen by the search",
}
ENDS = FAILURES | {
    "complete": "complete",
    "released": "returned by its worker",
    "preempted": "ended for a user's study",
    "cancelled": "cancelled",
}


def cluster_memory(value: Cluster) -> str:
    """Describe the memory that each rank of a cluster has, such as `80 GiB each`."""
    return f"{memory(value.memory_gib)} each"


def workload(value: Workload) -> str:
    """Describe a workload: `sequence 4,096 · global batch 256 · bf16-mixed`. An optimizer other than AdamW, an adapter
    and samples of several lengths are added."""
    batch = f"sequence {value.sequence_length:,} · global batch {value.global_batch:,}"
    return " · ".join((batch, value.precision.name, *study_words.trained_parts(value)))


def origins(study: Study) -> dict[str, str]:
    """Return descriptions of the possible origins of a study's trials, such as the baseline, a default or the search,
    by the origin's name."""
    return ORIGINS if study.system_study is None else ORIGINS | {"baseline": "current recommendation"}


def phase(study: Study, validation_runs: int) -> str:
    """Describe a running study's phase: `confirming, validation run 3 of at most 14`."""
    match study.phase:
        case StudyPhase.MODEL_SUMMARY:
            return "counting the model's parameters"
        case StudyPhase.FINAL_COMPARISON:
            return f"confirming, {activity_words.validation_position(study, validation_runs)}"
        case StudyPhase.SEARCH | StudyPhase.DONE:
            return "searching" if study.system_study is None else "measuring"
        case _:
            assert_never(study.phase)


def verdict(study: Study, purpose: Purpose) -> tuple[str, str]:
    """Return tone (colour) and sentence for a study's verdict or, if a retune ended with this study, for the outcome
    of the retune."""
    result = study.result
    # A retune that kept its recommendation has no verdict of its own worth showing: its outcome says more.
    if purpose.outcome:
        return "good" if purpose.is_kept else "quiet", purpose.outcome
    if result is None:
        return _unfinished(study)
    # An extended study has its previous result until the new verdict.
    tone, sentence = _answer(result)
    if study.state.is_open:
        return "busy", f"Being extended; so far: {sentence}"
    if study.state is StudyState.FAILED:
        return "warn", f"Extending it failed, and its earlier answer stays: {sentence}"
    return tone, sentence


def stated_subjects(study: Study, purpose: Purpose) -> tuple[str, ...]:
    """Return subjects of the reasons that the sentence of `verdict` states itself."""
    is_busy = study.result is not None and study.result.too_busy is not None
    return (TOO_BUSY,) if is_busy and not purpose.outcome else ()


def _answer(result: StudyResult) -> tuple[str, str]:
    if result.verdict is Verdict.CONFIRMED and result.speedup is not None:
        low, high = result.speedup.ci95
        times = f"{result.speedup.value:.2f} times as fast as the baseline"
        return "good", f"Confirmed: {times} (95 % interval {low:.2f} to {high:.2f})."
    if result.too_busy is not None:
        is_kept = result.best == result.baseline
        kept = (
            "Keep the baseline until it is decided."
            if is_kept
            else "For now, the candidate is the answer, as it was faster in the pairs."
        )
        seen = f" {gain_so_far(result.speedup)}." if result.speedup else ""
        cause = disturbances.busy_cause(result.too_busy)
        return "warn", f"Too busy: {TOO_BUSY_STATE}. {kept} {cause[:1].upper()}{cause[1:]}.{seen}"
    if result.speedup is None:
        return _without_interval(result)
    reached = figures(result.speedup)
    if result.undecided is not None:
        kept = "Keep the baseline until it is decided." if result.candidate else _FASTER_FOR_NOW
        return "warn", f"Undecided: the fastest candidate reached {reached}. {kept}"
    # Only an interval entirely below 1 says "slower"; one that includes 1 says nothing about the direction.
    if result.speedup.ci95[1] < 1:
        return "quiet", f"The fastest candidate is slower: {reached}. Keep the baseline."
    return "quiet", (
        f"Not faster by a worthwhile margin: the fastest candidate reached {reached}. "
        f"{'Keep the baseline.' if result.candidate else _EITHER}"
    )


def _without_interval(result: StudyResult) -> tuple[str, str]:
    comparison = result.final_comparison
    if comparison is None:
        return "quiet", "Nothing to compare: no other configuration is feasible. Keep the baseline."
    if result.verdict is Verdict.NOT_FASTER:
        ratio = f"{median(comparison.ratios):.2f}× the baseline's speed"
        return "quiet", f"Not faster: the fastest candidate reached {ratio}. Keep the baseline."
    kept = "Keep the baseline until it is decided." if result.candidate else _FASTER_FOR_NOW
    return "warn", f"Undecided: too few pairs for an interval. {kept}"


def gain_so_far(speedup: Speedup) -> str:
    """Describe the gain in pairs to which a too busy machine left no verdict."""
    return f"So far the candidate reached {figures(speedup)}"


def figures(speedup: Speedup) -> str:
    """Return a speed-up over the baseline with its interval."""
    low, high = speedup.ci95
    around_one = ", which includes 1" if low <= 1 <= high else ""
    return f"{speedup.value:.2f}× the baseline's speed (95 % interval {low:.2f} to {high:.2f}{around_one})"


def best_title(study: Study, is_recommended: bool) -> str:
    """Return the heading above a study's best configuration, such as `Best so far` or, while the verdict is open,
    `Kept for now: the baseline`."""
    result = study.result
    if result is None:
        is_comparing = study.phase is StudyPhase.FINAL_COMPARISON
        return "Fastest of the search" if is_comparing else "Best so far"
    is_baseline = result.best.trial_number == result.baseline.trial_number
    if result.verdict in (Verdict.TOO_BUSY, Verdict.UNDECIDED) and result.final_comparison is not None:
        return (
            "Kept for now: the baseline"
            if is_baseline
            else "Recommended for now"
            if is_recommended
            else "Faster so far"
        )
    return "Best: the baseline" if is_baseline and result.final_comparison is not None else "Best"


def _short_reason(study: Study) -> str:
    details = f" ({study.reason_details})" if study.reason_details else ""
    return (study.reason or "").removesuffix(details)


def _unfinished(study: Study) -> tuple[str, str]:
    match study.state:
        case StudyState.FAILED:
            return "bad", f"No answer: {_short_reason(study) or 'the study failed'}."
        case StudyState.CANCELLED:
            return "quiet", f"Cancelled before it had an answer{': ' + study.reason if study.reason else ''}."
        case StudyState.WAITING:
            return (
                "warn",
                f"Waiting for a worker with {cluster_words.cluster(study.cluster)}; an autoscaler sees the demand at /v1/demand.",
            )
        case StudyState.PAUSED:
            return "quiet", "Paused: no further run starts until it is resumed."
        case StudyState.RUNNING | StudyState.COMPLETE:
            return _running(study)
        case _:
            assert_never(study.state)


def _running(study: Study) -> tuple[str, str]:
    if study.phase is StudyPhase.FINAL_COMPARISON:
        return "busy", "Search complete; the fastest configurations and the baseline run again in pairs."
    if study.best_so_far is not None:
        if study.system_study is None or study.system_study.kind == SystemStudyKind.SEARCH:
            return "busy", "Searching. These figures are single runs: paired runs at the end decide."
        return (
            "busy",
            "Measuring. These figures are single runs: paired runs follow where a challenger comes near.",
        )
    return "busy", "Starting: nothing has been measured yet."
