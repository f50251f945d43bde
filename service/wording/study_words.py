"""Studies, trials and figures in words, shared by the command line and the pages."""

from collections.abc import Sequence

from shardtune.api_schemas import formatting
from shardtune.api_schemas.studies.study import Study, StudyPhase
from shardtune.api_schemas.studies.verdicts import AgainstDefault, OpenVerdict
from shardtune.api_schemas.trials.measurements import Progress
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.api_schemas.trials.trial import Rejection, Run, RunPurpose, Trial, TrialOrigin, TrialState
from shardtune.service.wording.backend_words import BACKENDS, short_name
from shardtune.service.wording.disambiguate import knob_value
from shardtune.service.wording.knob_words import KNOBS, knob_name
from shardtune.tuner.verdict import final_comparison

_MOST_REASONS = 5
_RUNS = {
    RunPurpose.MODEL_SUMMARY: "profile of the model",
    RunPurpose.SEARCH: "search run",
    RunPurpose.VALIDATION: "validation run",
    RunPurpose.RESUME_CHECK: "resume check",
    RunPurpose.TRACE: "model_summary",
}


def kind_of_run(purpose: RunPurpose) -> str:
    """What a run is for."""
    return _RUNS[purpose]


def is_done(trial: Trial) -> bool:
    """The trial has ended, however."""
    return not trial.state.is_open


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `1 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def rate(value: float | None) -> str:
    """Tokens per second and GPU."""
    return "" if value is None else f"{value:,.0f}"


def memory(value: float | None) -> str:
    """With its unit; empty where it is not known."""
    return "" if value is None else formatting.memory(value)


def peak_memory(trial: Trial) -> float | None:
    """What the limit is about: reserved on a GPU, allocated on CPU ranks, which reserve nothing."""
    return trial.peak_allocated_gib if trial.peak_reserved_gib is None else trial.peak_reserved_gib


def reason(trial: Trial) -> str:
    """Why a trial is not feasible, on one line; empty where it is."""
    if trial.failure is None:
        return ""
    return f"{trial.failure.kind.value}: {' '.join(trial.failure.message.split())}"


def pruned(trial: Trial) -> str:
    """How far a pruned trial came and what it measured, on one line; empty where it was not pruned."""
    seen = next((run.measurement for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    if trial.state is not TrialState.PRUNED or seen is None:
        return ""
    within = seen.step_time_half_width_s / seen.step_time_s
    return (
        f"stopped after {seen.measured_steps} timed steps at {rate(seen.tokens_per_s_per_gpu)} tokens/s/GPU (± {within:.1%}), "
        f"surely less than {final_comparison.NEAR:.0%} of the fastest so far"
    )


def rejection_text(rejection: Rejection) -> str:
    """Why the memory gate rejected a configuration."""
    what, reason = rejection.config.describe(), " ".join(rejection.reason.split())
    return reason if reason.startswith(what) else f"{what}: {reason}"


def closest_rejections(rejections: Sequence[Rejection]) -> list[str]:
    """Of each backend the rejected configuration that was nearest to fitting."""
    nearest: dict[str, Rejection] = {}
    for rejection in rejections:
        known = nearest.get(rejection.config.backend)
        if known is None or rejection.needed_gib < known.needed_gib:
            nearest[rejection.config.backend] = rejection
    return [rejection_text(rejection) for rejection in nearest.values()]


def predicted(trial: Trial) -> str:
    """What was predicted for a trial, in brackets; empty where nothing was."""
    made = trial.prediction
    if made is None:
        return ""
    speed = f"{rate(made.tokens_per_s_per_gpu)} tokens/s/GPU, " if made.tokens_per_s_per_gpu is not None else ""
    return f" (predicted: {speed}{memory(made.memory_gib)})"


def tested(trial: Trial) -> str:
    """What the sampler tried with it; empty where it was a seed, or the sampler cannot say."""
    why = trial.reason
    return "" if why is None else f" (tried: {tests(why.tests)}; expected gain {why.expected_gain:.1%})"


def tests(stored: str) -> str:
    """The knobs in which a trial differs from the fastest, as a person would say it: `freed host memory kept instead of left to glibc`."""
    return "; ".join(_in_words(*part.partition(" ")) for part in stored.split("; "))


def _in_words(name: str, gap: str, rest: str) -> str:
    """`fsdp2 instead of zero` is about backends, `micro_batch 4 instead of 1` about a knob; the rest is told as it stands."""
    value, found, other = rest.partition(" instead of ")
    if name in BACKENDS:
        return f"{short_name(name)}{gap}instead of {short_name(rest.rpartition(' ')[2])}"
    if name not in KNOBS or not found:
        return f"{name}{gap}{rest}"
    if value in ("True", "False"):
        return f"{'with' if value == 'True' else 'without'} {knob_name(name)}"
    return f"{knob_name(name)} {_value(name, value)} instead of {_value(name, other)}"


def _value(name: str, stored: str) -> str:
    return knob_value(name, int(stored) if stored.isdecimal() else stored)


def restarted(check: ResumeCheck) -> str:
    """What the check of the winner's own checkpoint came to."""
    if check.outcome != ResumeOutcome.PASSED:
        return f"{'not checked' if check.outcome is ResumeOutcome.NOT_CHECKED else check.outcome}: {check.reason}"
    assert check.checkpoint_bytes is not None
    off = f"largest difference {check.loss_difference:.1e}" if check.loss_difference else "no difference"
    retries = ", no allocator retries" if check.allocator_retries == 0 else ""
    return (
        f"went on from its own checkpoint in new processes: {check.steps_before} steps, saved {check.checkpoint_bytes / 2**20:,.1f} MiB"
        f"{_written(check)} in {check.save_s:.2f} s, loaded in {check.load_s:.2f} s, {check.steps_after} steps with the losses of an "
        f"uninterrupted run ({off}){retries}"
    )


def _written(check: ResumeCheck) -> str:
    """In how many files, by whom, where that is known."""
    files = "" if check.checkpoint_files is None else f" in {check.checkpoint_files} files"
    by = (
        "" if check.writing_ranks is None else f" by {check.writing_ranks} rank{'s' if check.writing_ranks > 1 else ''}"
    )
    return f"{files}{by}"


def checkpoints(check: ResumeCheck, every_s: float) -> str | None:
    """What they cost the training that the answer is for; None where nothing was measured."""
    if check.saving_fraction is None or check.save_s is None or check.checkpoint_bytes is None:
        return None
    share = "less than 0.01%" if check.saving_fraction < 0.0001 else f"{check.saving_fraction:.2%}"
    said = f"checkpoints: {share} of the time of a training that saves every {every_s:,.0f} s and waits for it"
    if check.disk is not None:
        reached = check.checkpoint_bytes / max(check.save_s, 1e-9)
        said += f" ({reached / 1e6:,.0f} MB/s; one process writes {check.disk.write_bytes_per_s / 1e6:,.0f} MB/s to that disk)"
    return said


def undecided(verdict: OpenVerdict) -> str:
    """What is not known, and what would settle it."""
    said = f"undecided: the candidate won {verdict.won} of {verdict.pairs} pairs"
    if verdict.disturbed_runs:
        said += f", and {verdict.disturbed_runs} of their runs were disturbed by other programs"
    if verdict.more_pairs is None:
        return f"{said}; if it goes on like this, more pairs will not settle it: pairs on a quieter machine would vary less"
    pairs = "1 more pair" if verdict.more_pairs == 1 else f"{verdict.more_pairs} more pairs"
    return f"{said}; if it goes on like this, {pairs} would confirm it"


def against(row: AgainstDefault) -> str:
    """The answer beside a documented default at its best micro batch."""
    sizes = row.micro_batches
    tried = (
        f"the best of micro batch {', '.join(map(str, sizes))}" if len(sizes) > 1 else "tried at no other micro batch"
    )
    runs = "one run" if row.runs == 1 else f"{row.runs} runs"
    return f"{row.ratio:.2f}x the speed of {row.description} ({rate(row.tokens_per_s_per_gpu)} tokens/s/GPU in {runs}; {tried})"


def why_not(trials: Sequence[Trial], rejections: Sequence[Rejection]) -> list[tuple[str, str]]:
    """Infeasible and failed trials, the closest rejection of each backend, and a search that never began, as rows."""
    rows = [
        (trial.state.value, f"{trial.description}: {reason(trial)}") for trial in trials if trial.failure is not None
    ]
    if len(rows) > _MOST_REASONS:
        rows[_MOST_REASONS:] = [
            ("", f"and {len(rows) - _MOST_REASONS} more; `shardtune serve` has them under /v1/studies")
        ]
    rows += [("rejected", text) for text in closest_rejections(rejections)]
    if all(trial.origin != TrialOrigin.SAMPLER for trial in trials):
        rows.append(("note", "only the starting configurations ran, nothing was searched; allow 6 trials or more"))
    return rows


def activity(study: Study, trials: Sequence[Trial]) -> str:
    """What the study is doing at this moment."""
    if study.phase is StudyPhase.MODEL_SUMMARY:
        return "counting the model's parameters and FLOPs"
    running = [(trial, run) for trial in trials for run in trial.runs if run.state is TrialState.RUNNING]
    confirming = study.phase is StudyPhase.FINAL_COMPARISON
    what = confirm_position(study, trials) if confirming else "searching"
    if not running:
        return what + ", choosing the next configuration" if not confirming else what
    trial, run = running[-1]
    if run.purpose == RunPurpose.RESUME_CHECK:
        return f"trial {trial.number} won, and has to go on from its own checkpoint: {step(run.progress)}"
    return f"{what}, trial {trial.number}: {step(run.progress)}"


def confirm_position(study: Study, trials: Sequence[Trial]) -> str:
    """How far the final comparison is."""
    done, most = len(validation_runs(study, trials)), most_confirm_runs(study)
    if done < most:
        return f"running the fastest and the baseline again, run {done + 1} of at most {most}"
    return fresh_position(study, done)


def fresh_position(study: Study, done: int) -> str:
    """The same in short, with so many validation runs behind it."""
    most = most_confirm_runs(study)
    if not most:
        return "no validation runs, since one configuration has nothing to be compared with"
    return f"validation run {done + 1} of at most {most}" if done < most else f"all {done} validation runs are done"


def most_confirm_runs(study: Study) -> int:
    """Validation runs a final comparison can take; it ends as soon as the pairs are clear."""
    if study.final_comparison_runs is not None:
        return study.final_comparison_runs
    return final_comparison.most_runs(study.spec.budget.most_trials - 1, study.spec.budget.max_pairs)


def validation_runs(study: Study, trials: Sequence[Trial]) -> list[tuple[Trial, Run]]:
    """Complete runs of the present final comparison, with their trials; those of former ones do not count any more."""
    made = runs_of(trials, "validation", TrialState.COMPLETE)
    return [(trial, run) for trial, run in made if run.final_comparison in (None, study.final_comparison)]


def runs_of(trials: Sequence[Trial], purpose: str, state: TrialState) -> list[tuple[Trial, Run]]:
    """Runs of a purpose in a state, with their trials."""
    return [(trial, run) for trial in trials for run in trial.runs if run.purpose == purpose and run.state is state]


def step(progress: Progress | None) -> str:
    """Where a run stands."""
    if progress is None:
        return "starting ranks"
    words = {
        "starting": "starting ranks",
        "building": "building the model",
        "warming_up": "warming up",
        "saving": "saving a checkpoint",
        "loading": "loading a checkpoint",
    }
    phase = words.get(progress.phase, progress.phase)
    return f"{phase}, step {progress.step}" if progress.step else phase
