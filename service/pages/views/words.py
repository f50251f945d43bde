"""Clusters, workloads and outcomes in words."""

from typing import assert_never

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import Study, StudyPhase, StudyResult, StudyState, Verdict
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.pages.figures import percent
from shardtune.service.wording import cluster_words, study_words

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
    "numerics": "trains something else",
    "crash": "crashed",
    "rank_lost": "a rank was lost",
    "no_progress": "made no progress",
    "deadline": "took too long",
    "worker_lost": "its worker was lost",
    "node_lost": "one of its hosts was lost",
    "device": "its device was not fit",
    "suspect": "cannot be true",
    "disturbed": "disturbed by other programs",
    "setup": "could not be started",
}
_TO_FIT = "What takes less: sharding (ZeRO, FSDP), more so over more ranks; checkpointing; a smaller micro batch. The search tries them by itself."
ADVICE = {
    "oom": _TO_FIT,
    "over_limit": _TO_FIT,
    "rank_lost": (
        "A signal from outside ended the process. SIGKILL is most often the kernel or a control group out of host memory "
        "(dmesg on the worker says so), else an administrator or a scheduler. If it strikes one configuration only, give "
        "the host more memory; if all of them, look at the machine."
    ),
    "crash": "The traceback names the line. If it is the configuration's, leave it out with the study's space; else update the library.",
    "worker_lost": "The worker or its network went away; its own log says why. Start it again, and add trials.",
    "node_lost": "The message names the host. Runs are given out again by themselves, on the worker's other hosts where it has spare ones.",
    "no_progress": "Ranks waited for each other. Look for a stuck device or network on the worker, then add trials.",
    "device": "Look after the device as the message says before it is given more work.",
    "setup": "The worker could not start it: its message names what is missing there.",
}
"""What a person can do about a failure, by its kind; others explain themselves."""
_TIMES = 1.5
"""From here on a speed-up reads better as a factor than as per cent."""
ORIGINS = {
    "baseline": "your baseline",
    "default": "the backend's documented default",
    "challenger": "a challenger",
    "sampler": "chosen by the search",
}
ENDS = FAILURES | {"complete": "complete", "released": "handed back by its worker", "cancelled": "cancelled"}


def cluster_memory(value: Cluster) -> str:
    """Memory of one rank."""
    return f"{memory(value.memory_gib)} each"


def workload(value: Workload) -> str:
    """`sequence 4,096 · global batch 256 · bf16-mixed`."""
    return f"sequence {value.sequence_length:,} · global batch {value.global_batch:,} · {value.precision.name}"


def origins(study: Study) -> dict[str, str]:
    """Where the study's trials come from, by the word that is stored."""
    return ORIGINS if study.system_study is None else ORIGINS | {"baseline": "what is served"}


def phase(study: Study, validation_runs: int) -> str:
    """What a running study does: `confirming, fresh run 3 of at most 14`."""
    match study.phase:
        case StudyPhase.MODEL_SUMMARY:
            return "counting the model's parameters"
        case StudyPhase.FINAL_COMPARISON:
            return f"confirming, {study_words.fresh_position(study, validation_runs)}"
        case StudyPhase.SEARCH | StudyPhase.DONE:
            return "searching" if study.system_study is None else "measuring"
        case _:
            assert_never(study.phase)


def verdict(study: Study, outcome: str = "") -> tuple[str, str]:
    """Tone and sentence of what is known about a study's answer; `outcome`: what came of the retune that it ended."""
    result = study.result
    if outcome:
        return "good" if outcome.startswith("Kept") else "quiet", outcome
    if result is None:
        return _unfinished(study)
    tone, sentence = _answer(result)
    if study.state.is_open:
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
    figures = f"{result.speedup.value:.2f}× the baseline's speed (95 % interval {low:.2f} to {high:.2f}"
    if result.undecided is not None:
        kept = (
            "Keep the baseline until it is." if result.candidate else "Of the two, the one that was faster is served."
        )
        won = f"won {result.undecided.won} of {result.undecided.pairs} pairs"
        return "warn", f"Undecided: the fastest candidate {won}, {figures}). {kept}"
    if high < 1:
        return "quiet", f"The fastest candidate is slower: {figures}). Keep the baseline."
    return "quiet", (
        f"Not faster by a gain worth having: the fastest candidate came to {figures}"
        f"{', which includes 1' if low <= 1 else ''}). "
        f"{'Keep the baseline.' if result.candidate else 'Of the two, the one that was faster is served.'}"
    )


def split_reason(study: Study) -> tuple[str, str]:
    """Why a study failed: in short, and the details that its reason has in brackets, with what follows them."""
    short, _, rest = (study.reason or "").partition(" (")
    depth = 1
    for place, sign in enumerate(rest):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            rest = rest[:place] + rest[place + 1 :]
            break
    return short, rest[:1].upper() + rest[1:]


def _unfinished(study: Study) -> tuple[str, str]:
    match study.state:
        case StudyState.FAILED:
            reason, _ = split_reason(study)
            return "bad", f"No answer: {reason or 'the study failed'}."
        case StudyState.CANCELLED:
            return "quiet", f"Cancelled before it had an answer{': ' + study.reason if study.reason else ''}."
        case StudyState.WAITING:
            return (
                "warn",
                f"Waiting for a worker with {cluster_words.cluster(study.cluster)}; /v1/demand says so to whoever starts machines.",
            )
        case StudyState.PAUSED:
            return "quiet", "Paused: no further run is given out until it is resumed."
        case StudyState.RUNNING | StudyState.COMPLETE:
            return _running(study)
        case _:
            assert_never(study.state)


def _running(study: Study) -> tuple[str, str]:
    if study.phase is StudyPhase.FINAL_COMPARISON:
        return "busy", "The search is over; the fastest and the baseline are being run again."
    if study.best_so_far is not None:
        if study.system_study is None or study.system_study.kind == SystemStudyKind.SEARCH:
            return "busy", "Searching. These figures are single runs: paired runs at the end decide."
        return (
            "busy",
            "Measuring. These figures are single runs: paired runs follow where a challenger comes near.",
        )
    return "busy", "Starting: nothing has been measured yet."
