"""Words about what a study does now: its phase, the run of a trial, and the position in the final comparison."""

from collections.abc import Sequence

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.conditions import OWN_PROCESSES, Conditions, program_names
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.trial import AttemptEnd, Run, RunPurpose, Trial, TrialState
from shardtune.service.wording.progress import kept_runs
from shardtune.service.wording.study_words import duration
from shardtune.tuner.verdict import final_comparison

_FEWEST_BUSY = 3
"""Minimum number of search runs, all disturbed, that show a load that stays. Fewer do where repeats have ended because
of the load."""
_RETRY_REASONS = {
    AttemptEnd.DISTURBED: "was disturbed",
    AttemptEnd.RELEASED: "was returned by its worker",
    AttemptEnd.PREEMPTED: "gave its worker to a user's study",
    AttemptEnd.WORKER_LOST: "was lost with its worker",
}
"""Ends of an attempt after which a run is made again, in words; other ends are stated by their name."""


def activity(study: Study, trials: Sequence[Trial]) -> str:
    """Describe the current activity of a study, such as search or final comparison."""
    if study.phase is StudyPhase.MODEL_SUMMARY:
        return "counting the model's parameters and FLOPs"
    running = [(trial, run) for trial in trials for run in trial.runs if run.state is TrialState.RUNNING]
    is_comparing = study.phase is StudyPhase.FINAL_COMPARISON
    phase = final_comparison_position(study, trials) if is_comparing else "searching"
    if not running:
        return phase + ", choosing the next configuration" if not is_comparing else phase
    trial, run = running[-1]
    if run.purpose == RunPurpose.RESUME_CHECK:
        return f"resume check of the winner, trial {trial.number}: {describe_step(run.progress)}"
    if run.purpose == RunPurpose.SUSTAINED:
        return f"sustained run of the winner, trial {trial.number}: {describe_step(run.progress)}"
    if run.purpose == RunPurpose.REHEARSAL:
        return f"rehearsing the projection of trial {trial.number} at the target's number of ranks"
    if run.purpose == RunPurpose.RECIPE:
        return f"{phase}, {run.recipe or 'the stated one'}: {describe_step(run.progress)}"
    if run.is_whole_step:
        return f"timing whole steps, trial {trial.number}: {describe_step(run.progress)}"
    return f"{phase}, trial {trial.number}: {describe_step(run.progress)}"


def final_comparison_position(study: Study, trials: Sequence[Trial]) -> str:
    """Describe the progress of a study's final comparison, and of the runs that compare recipes (precisions,
    optimizers)."""
    if any(run.purpose == RunPurpose.RECIPE for trial in trials for run in trial.runs) and study.result is None:
        return "recipes beside the answer"
    complete, most = len(validation_runs(study, trials)), most_validation_runs(study)
    if complete < most:
        return f"final comparison, run {complete + 1} of at most {most}{_parts_of_maximum(study)}"
    # Beyond the maximum only such pairs run; a resume check or recipes may follow them instead.
    if most and any(_is_open_validation(run) for trial in trials for run in trial.runs):
        return f"final comparison, run {complete + 1}: pairs that do not count run again"
    return validation_position(study, complete)


def _is_open_validation(run: Run) -> bool:
    return run.purpose == RunPurpose.VALIDATION and run.state.is_open and not run.is_whole_step


def validation_position(study: Study, complete: int) -> str:
    """Describe the progress of a final comparison in short, from its number of complete validation runs."""
    most = most_validation_runs(study)
    if not most:
        return "no validation runs, because there is only one configuration"
    # Not "all": pairs that do not count may still run again.
    return validation_run(study, complete + 1) if complete < most else f"{complete} validation runs are done"


def comparison_plan(study: Study, trials: Sequence[Trial]) -> str:
    """Describe the plan of a final comparison when it begins or goes on: its runs that choose, and its pairs."""
    pairs, most = study.spec.budget.max_pairs, most_validation_runs(study)
    choosing, complete = most - 2 * pairs, len(validation_runs(study, trials))
    if not most or choosing < 0:
        # Only one configuration, or several defaults alone: no pairs are planned.
        return activity(study, trials)
    if complete:
        return f"final comparison, continued after {counted(complete, 'validation run')}: up to {pairs} pairs of runs decide"
    if not choosing:
        return f"final comparison: up to {pairs} pairs of runs decide"
    runs = "1 validation run chooses" if choosing == 1 else f"{choosing} validation runs choose"
    return f"final comparison: up to {runs} the two trials to compare, then up to {pairs} pairs of runs compare them"


def validation_run(study: Study, number: int) -> str:
    """Name a validation run by its number: `validation run 3 of at most 14`."""
    return f"validation run {of_most_validation_runs(study, number)}"


def _parts_of_maximum(study: Study) -> str:
    """Say how the maximum number of runs follows from `max_pairs`: ` (up to 10 runs that choose what to pair, then up to
    7 pairs)`. Empty if no pairs are planned, as among several defaults alone."""
    pairs = study.spec.budget.max_pairs
    screening = most_validation_runs(study) - 2 * pairs
    if screening < 0:
        return ""
    choosing = f"up to {screening} run{'s that choose' if screening > 1 else ' that chooses'} what to pair, then "
    return f" ({choosing if screening else ''}up to {pairs} pairs)"


def of_most_validation_runs(study: Study, number: int) -> str:
    """Compare a number of validation runs with their maximum: `3 of at most 14`."""
    most = most_validation_runs(study)
    # The maximum counts each pair once; a pair that was left out, for unequal load or other hosts, runs again.
    return f"{number} of at most {most}" if number <= most else f"{number} (at most {most} if every pair counts)"


def most_validation_runs(study: Study) -> int:
    """Return the maximum number of validation runs of a final comparison, if the two runs of each pair have equal
    load. The comparison ends earlier if fewer pairs decide it."""
    if study.final_comparison_runs is not None:
        return study.final_comparison_runs
    return final_comparison.max_runs(study.spec.budget.most_trials - 1, study.spec.budget.max_pairs)


def validation_runs(study: Study, trials: Sequence[Trial]) -> list[tuple[Trial, Run]]:
    """Return the complete validation runs of a study's current final comparison, with their trials. Runs that time whole
    steps after the verdict are left out."""
    complete = runs_of_comparison(study, trials, RunPurpose.VALIDATION)
    return [(trial, run) for trial, run in complete if not run.is_whole_step]


def runs_of_comparison(study: Study, trials: Sequence[Trial], purpose: RunPurpose) -> list[tuple[Trial, Run]]:
    """Return the complete runs with a given purpose that belong to a study's current final comparison, with their
    trials."""
    # A study that was extended compares again: runs of earlier comparisons may be from a different day.
    complete = runs_of(trials, purpose, TrialState.COMPLETE)
    return [(trial, run) for trial, run in complete if run.final_comparison in (None, study.final_comparison)]


def runs_of(trials: Sequence[Trial], purpose: str, state: TrialState) -> list[tuple[Trial, Run]]:
    """Return the runs of a study with a given purpose and state, with their trials."""
    return [(trial, run) for trial in trials for run in trial.runs if run.purpose == purpose and run.state is state]


def complete_run_ids(trials: Sequence[Trial], purpose: RunPurpose) -> set[str]:
    """Return the ids of the complete runs of a study with a given purpose."""
    return {run.run_id for _, run in runs_of(trials, purpose, TrialState.COMPLETE)}


def describe_busy_search(study: Study, trials: Sequence[Trial]) -> str | None:
    """Describe how to get a verdict although each run so far was disturbed. None if the runs show no load that stays,
    and once one of them was undisturbed."""
    if study.phase not in (StudyPhase.SEARCH, StudyPhase.FINAL_COMPARISON):
        return None
    counted = [
        (trial, run, run.measurement)
        for trial, run in kept_runs.ended_runs(trials)
        if run.state is TrialState.COMPLETE and run.measurement is not None and _is_of_the_verdict(run)
    ]
    kept = [kept_runs.kept_run(study, trials, trial, run) for trial, run, _ in counted]
    if not kept or not all(kept):
        return None
    searched = sum(run.purpose == RunPurpose.SEARCH for _, run, _ in counted)
    if searched < _FEWEST_BUSY and not any(run is not None and run.is_load_steady for run in kept):
        return None
    last = counted[-1][2]
    if not last.is_disturbed_by_programs:
        return (
            "every run so far was disturbed, and only with an undisturbed pair is a gain confirmed: by what is not known "
            f"(the last run: {last.disturbed}); use a machine that runs nothing else"
        )
    seen = last.conditions
    named = _foreign_names(seen) if seen is not None else ""
    programs = f"other programs ({named})" if named else "other programs"
    is_known = all(measurement.is_disturbed_by_programs for _, _, measurement in counted)
    cause = "they disturbed every run so far" if is_known else "every run so far was disturbed"
    # The remedy first: the table of a narrow terminal cuts the end of a line. One remedy alone: whoever cannot follow it
    # gets the command for later with the answer.
    return f"end {programs} now: {cause}, and a gain is confirmed only with an undisturbed pair"


def _foreign_names(seen: Conditions) -> str:
    """Return the names of the programs that a user can end, with the cores that each used. The rest is stated unless it is
    what Shardtune itself used."""
    programs = [program for program in seen.foreign_programs if program.name != OWN_PROCESSES]
    own = sum(program.cores for program in seen.foreign_programs if program.name == OWN_PROCESSES)
    return program_names(programs, None if seen.foreign_cpu_cores is None else seen.foreign_cpu_cores - own)


def _is_of_the_verdict(run: Run) -> bool:
    """Whether a run may count for a verdict. Runs of earlier final comparisons may too: an undisturbed one of them shows
    a quiet machine."""
    return run.purpose in (RunPurpose.SEARCH, RunPurpose.VALIDATION) and not run.is_whole_step


def describe_step(progress: Progress | None) -> str:
    """Describe the current phase and training step of a run."""
    if progress is None:
        return "starting ranks"
    if progress.phase == "waiting_for_quiet":
        return _waiting_text(progress)
    words = {
        "starting": "starting ranks",
        "building": "building the model",
        "warming_up": "warming up",
        "saving": "saving a checkpoint",
        "loading": "loading a checkpoint",
    }
    phase = words.get(progress.phase, progress.phase)
    return f"{phase}, step {progress.step}" if progress.step else phase


def _waiting_text(progress: Progress) -> str:
    """Describe the wait of a run for a quiet machine: which programs keep it busy, and how long the wait has taken."""
    text = "waiting until the machine is quiet"
    if progress.foreign_cpu_cores is not None:
        named = program_names(progress.foreign_programs, progress.foreign_cpu_cores)
        names = f": {named}" if named else ""
        text += f" (other programs keep {progress.foreign_cpu_cores:.1f} CPU cores busy{names})"
    return text + (f", {duration(progress.waited_s)} so far" if progress.waited_s is not None else "")


def waiting_reason(trial: Trial) -> str:
    """Say for what a trial waits: `for a worker`, or `for attempt 3, as attempt 2 was disturbed`; empty unless it
    waits."""
    if trial.state is not TrialState.WAITING:
        return ""
    attempts = [attempt for run in trial.runs if run.state is TrialState.WAITING for attempt in run.attempts]
    if not attempts or attempts[-1].end is None:
        return "for a worker"
    number, end = attempts[-1].attempt, attempts[-1].end
    return f"for attempt {number + 1}, as attempt {number} {_RETRY_REASONS.get(end, f'ended as {end.value}')}"
