"""Descriptions of studies, trials and figures, shared by the command line and the pages."""

from collections.abc import Sequence

from shardtune.api_schemas import formatting
from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.verdicts import AgainstDefault, OpenVerdict
from shardtune.api_schemas.training import float8
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.api_schemas.trials.trial import (
    Rejection,
    RunPurpose,
    Trial,
    TrialOrigin,
    TrialState,
)
from shardtune.service.wording.disambiguate import describe_trials
from shardtune.tuner.verdict.comparison_blocks import NEAR_FRACTION

_MOST_REASONS = 5
_RUN_NAMES = {
    RunPurpose.MODEL_SUMMARY: "model summary",
    RunPurpose.SEARCH: "search run",
    RunPurpose.VALIDATION: "validation run",
    RunPurpose.RESUME_CHECK: "resume check",
    RunPurpose.SUSTAINED: "sustained run",
    RunPurpose.RECIPE: "recipe run",
    RunPurpose.REHEARSAL: "rehearsal",
    RunPurpose.TRACE: "profiled run",
}


def trained_parts(workload: Workload) -> tuple[str, ...]:
    """Describe the parts of a workload that differ from the usual: float8, an optimizer other than the default, an
    adapter, samples of several lengths."""
    scaling = () if workload.float8 is None else (float8.title(workload.float8),)
    optimizer = () if workload.optimizer.kind == DEFAULT_OPTIMIZER else (workload.optimizer.title,)
    parts = (workload.adapter, workload.data)
    return (*scaling, *optimizer, *(part.describe() for part in parts if part is not None))


def run_name(purpose: RunPurpose) -> str:
    """Return the display name of a run's purpose, such as search or final comparison."""
    return _RUN_NAMES[purpose]


def is_done(trial: Trial) -> bool:
    """Whether a trial has ended, with or without success."""
    return not trial.state.is_open


def duration(seconds: float) -> str:
    """Format a duration in seconds: `45 s`, `3 min`, `1 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def rate(value: float | None) -> str:
    """Format a speed in tokens per second per GPU; empty if the speed is unknown."""
    return "" if value is None else formatting.rate(value)


def memory(value: float | None, *beside: float | None) -> str:
    """Format an amount of memory in GiB with the unit; empty if the amount is unknown. `beside`: amounts with which a
    reader compares it, and which have the same unit."""
    return "" if value is None else formatting.memory(value, *(other for other in beside if other is not None))


def peak_memory(trial: Trial) -> float | None:
    """Return the peak memory in GiB that the memory limit applies to: reserved memory on a GPU, allocated memory on CPU
    ranks.
    """
    # The caching allocator exists on GPUs only: a CPU rank reserves nothing beyond its allocations.
    return trial.peak_allocated_gib if trial.peak_reserved_gib is None else trial.peak_reserved_gib


def failure_line(trial: Trial) -> str:
    """Describe the failure of a trial on one line; empty for a feasible trial."""
    if trial.failure is None:
        return ""
    return f"{trial.failure.kind.value}: {' '.join(trial.failure.message.split())}"


def pruning_note(trial: Trial) -> str:
    """Describe on one line how many steps a pruned trial (one that ended early because it was slow) took and how fast
    it was; empty for another trial."""
    measurement = next((run.measurement for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    if trial.state is not TrialState.PRUNED or measurement is None:
        return ""
    half_width = measurement.step_time_half_width_s / measurement.step_time_s
    return (
        f"stopped after {measurement.measured_steps} timed steps at {rate(measurement.tokens_per_s_per_gpu)} tokens/s/GPU (± {half_width:.1%}), "
        f"{'certainly' if measurement.disturbed is None else 'perhaps'} below {NEAR_FRACTION:.0%} of the fastest so far"
    )


def rejection_text(rejection: Rejection) -> str:
    """Return on one line why the memory gate rejected a configuration (predicted not to fit). The reason begins with
    the configuration's description."""
    return " ".join(rejection.reason.split())


def closest_rejections(rejections: Sequence[Rejection]) -> list[str]:
    """Describe, for each backend, the configuration that came closest to fitting among those that the memory gate
    rejected."""
    nearest: dict[str, Rejection] = {}
    for rejection in rejections:
        closest = nearest.get(rejection.config.backend)
        if closest is None or rejection.needed_gib < closest.needed_gib:
            nearest[rejection.config.backend] = rejection
    return [rejection_text(rejection) for rejection in nearest.values()]


def trial_memory(trial: Trial) -> str:
    """Format the peak memory of a trial, in the unit of `prediction_note`; empty if it is unknown."""
    return memory(peak_memory(trial), None if trial.prediction is None else trial.prediction.memory_gib)


def prediction_note(trial: Trial) -> str:
    """Return the predicted speed and memory of a trial in brackets; empty without a prediction."""
    prediction = trial.prediction
    if prediction is None:
        return ""
    # In the order and the units of the measured figures before it.
    speed = f"{rate(prediction.tokens_per_s_per_gpu)}, " if prediction.tokens_per_s_per_gpu is not None else ""
    return f" (predicted {speed}{memory(prediction.memory_gib, peak_memory(trial))})"


def resume_check_text(check: ResumeCheck) -> str:
    """Describe the result of a resume check (train, save, resume from the checkpoint); the caller adds the label."""
    if check.outcome != ResumeOutcome.PASSED:
        return f"{'not checked' if check.outcome is ResumeOutcome.NOT_CHECKED else check.outcome}: {check.reason}"
    assert check.checkpoint_bytes is not None
    losses = f"losses within {check.loss_difference:.1e}" if check.loss_difference else "identical losses"
    retries = ", no allocator retries" if check.allocator_retries == 0 else ""
    return (
        f"passed ({check.steps_before} steps, {check.checkpoint_bytes / 2**20:,.1f} MiB saved{_writers(check)} in {check.save_s:.2f} s, "
        f"loaded in {check.load_s:.2f} s, {check.steps_after} more steps with {losses}{retries})"
    )


def _writers(check: ResumeCheck) -> str:
    """Describe the number of files of a checkpoint and of ranks that write it, as far as they are known: ` in 4 files
    by 2 ranks`."""
    files = "" if check.checkpoint_files is None else f" in {check.checkpoint_files} files"
    ranks = (
        "" if check.writing_ranks is None else f" by {check.writing_ranks} rank{'s' if check.writing_ranks > 1 else ''}"
    )
    return f"{files}{ranks}"


def checkpoint_cost(check: ResumeCheck, every_s: float) -> str | None:
    """Describe which fraction of the user's training time checkpoints take; None if it was not measured."""
    if check.saving_fraction is None or check.save_s is None or check.checkpoint_bytes is None:
        return None
    fraction = "less than 0.01%" if check.saving_fraction < 0.0001 else f"{check.saving_fraction:.2%}"
    return f"checkpoints: {fraction} of training time with a blocking save every {every_s:,.0f} s"


def disturbed_searches(result: StudyResult) -> str:
    """Say how many search runs of a result were disturbed: `3 of 12 search runs were disturbed`; empty if none was."""
    return count_disturbed(result.disturbed_search_runs, result.search_runs)


def count_disturbed(disturbed: int, search_runs: int) -> str:
    """Format a number of disturbed search runs: `3 of 12 search runs were disturbed`; empty if the number is 0."""
    if not disturbed:
        return ""
    return f"{disturbed} of {counted(search_runs, 'search run')} {'was' if disturbed == 1 else 'were'} disturbed"


def is_search_run_disturbed(trial: Trial) -> bool:
    """Whether the search run of a trial counts although it was disturbed."""
    measured = (run.measurement for run in trial.runs if run.purpose == RunPurpose.SEARCH)
    return any(measurement is not None and measurement.disturbed is not None for measurement in measured)


UNDISTURBED_SPREAD = "no other program was seen to disturb them"
"""Remark about pairs that vary too much to decide although their machine was quiet."""


def undecided_text(verdict: OpenVerdict) -> str:
    """Describe an undecided final comparison, with the number of paired runs that would decide it."""
    if not verdict.pairs:
        return "undecided: no pair of candidate and baseline was completed"
    text = f"undecided: the candidate won {verdict.won_pairs} of {verdict.pairs} pairs"
    if verdict.is_extension_off:
        return (
            f"{text} of extended step times, which whole steps contradict; a study with budget.short_steps false times "
            "whole steps throughout"
        )
    if verdict.disturbed_counted_runs:
        text += f", and other programs disturbed {verdict.disturbed_counted_runs} of their {2 * verdict.pairs} runs"
    if verdict.disturbed_pairs == verdict.pairs:
        return f"{text}; no pair was undisturbed, and only a quieter machine can decide it"
    if verdict.more_pairs is None:
        why = "on a quieter machine they would vary less" if verdict.disturbed_counted_runs else UNDISTURBED_SPREAD
        return f"{text}; at this spread more pairs would not decide it; {why}"
    pairs = counted(verdict.more_pairs, "more pair")
    return f"{text}; at this rate, {pairs} would confirm it"


def default_comparison(row: AgainstDefault) -> str:
    """Compare the recommended configuration with a documented default configuration, run at the micro batch with which
    the default is fastest."""
    sizes = row.micro_batches
    sizes_note = (
        f"the best of micro batch {', '.join(map(str, sizes))}" if len(sizes) > 1 else "the only micro batch measured"
    )
    runs = "by search runs" if row.is_by_search_runs else f"in {row.runs} validation run{'s' if row.runs > 1 else ''}"
    some = "at least one of them " if not row.is_by_search_runs and row.runs > 1 else ""
    disturbed = f", {some}disturbed" if row.is_disturbed else ""
    return (
        f"{row.ratio:.2f}x the speed of {row.description} "
        f"({rate(row.tokens_per_s_per_gpu)} tokens/s/GPU {runs}{disturbed}; {sizes_note})"
    )


def failure_rows(trials: Sequence[Trial], rejections: Sequence[Rejection]) -> list[tuple[str, str]]:
    """Return table rows for the failed trials of a study, and for the configuration of each backend that came closest
    to fitting. A last row says if the search never began."""
    names = describe_trials(trials)
    rows = [
        (trial.state.value, f"{names[trial.number]}: {failure_line(trial)}")
        for trial in trials
        if trial.failure is not None
    ]
    # Below a result, five reasons are read and fifty are not; the API has them all.
    if len(rows) > _MOST_REASONS:
        rows[_MOST_REASONS:] = [
            ("", f"and {len(rows) - _MOST_REASONS} more; `shardtune serve` lists them under /v1/studies")
        ]
    rows += [("rejected", text) for text in closest_rejections(rejections)]
    if trials and all(trial.origin != TrialOrigin.SAMPLER for trial in trials):
        began = "only the starting configurations ran and the search never began"
        rows.append(("note", f"{began}; allow 6 trials or more, and the GPU-seconds and time for them"))
    return rows
