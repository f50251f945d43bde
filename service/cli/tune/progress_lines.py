"""Print the progress of a study as plain lines on stderr, one per event, for logs and pipes."""

from collections.abc import Callable, Sequence

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import Rejection, RunPurpose, Trial, TrialState
from shardtune.service.cli.tune.comparison_lines import ComparisonLines
from shardtune.service.wording import study_words
from shardtune.service.wording.progress import activity_words, kept_runs, time_left, trial_lines

_MOST_REJECTIONS = 3


class LineView:
    """Progress view that prints, at each call of `show`, what has changed since the previous call."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase: StudyPhase | None = None
        self._states: dict[int, TrialState] = {}
        self._confirmed: set[str] = set()
        self._final_comparison = 0
        self._rejected = 0
        self._whole_steps: set[str] = set()
        self._resume_checks: set[str] = set()
        self._sustained_runs: set[str] = set()
        self._rehearsals: set[str] = set()
        self._recipe_runs: set[str] = set()
        self._disturbed: set[tuple[str, int]] = set()
        self._is_advised = False
        self._comparison = ComparisonLines(write)
        self._waits: set[tuple[str, int, int]] = set()
        self._reason: str | None = None

    def __enter__(self) -> "LineView":
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, since there is no table to close as in `LiveView`."""

    def say(self, line: str) -> None:
        """Print a line."""
        self._write(line)

    def show(self, study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection], elapsed_s: float) -> None:
        """Print what has changed since the previous call."""
        if study.final_comparison != self._final_comparison:
            # An extended study compares anew: its runs are counted from 1 again.
            self._final_comparison, self._confirmed = study.final_comparison, set()
        if self._phase is None and any(study_words.is_done(trial) for trial in trials):
            self._summarize_earlier(study, trials, rejections)
        self._print_disturbed(trials)
        self._comparison.write_kept(study, trials)
        for trial in trials:
            if self._states.get(trial.number) is not trial.state:
                line = trial_lines.trial_line(study, trial, trials, is_first=trial.number not in self._states)
                self._states[trial.number] = trial.state
                # A trial that did not complete says little about the time of others.
                is_complete = trial.state is TrialState.COMPLETE
                self._write(line + (_time_left_note(study, trials, elapsed_s) if is_complete else ""))
        if study.reason != self._reason and study.state.is_open:
            # Such as the worker for which it waits; without a line the study would seem to hang. After the trials: the
            # last of them ends the search.
            self._reason = study.reason
            self._write(study.reason or "the study goes on")
        self._print_rejections(rejections)
        if study.phase is not self._phase and study.phase is not StudyPhase.DONE:
            self._phase = study.phase
            if study.phase is StudyPhase.FINAL_COMPARISON:
                self._write(activity_words.comparison_plan(study, trials))
            elif study.phase is not StudyPhase.SEARCH:
                self._write(activity_words.activity(study, trials))
            # Once when the load stays, and once more when the runs that decide begin.
            self._is_advised = False
        if not self._is_advised and (advice := activity_words.describe_busy_search(study, trials)) is not None:
            self._is_advised = True
            self._write(advice)
        self._print_waits(trials)
        self._print_validation_runs(study, trials, elapsed_s)
        self._comparison.write_pairs(study, trials)
        self._print_whole_steps(study, trials)
        self._print_resume_checks(trials)
        self._print_sustained_runs(study, trials)
        self._print_rehearsals(trials)
        self._print_recipe_runs(study, trials)

    def _print_validation_runs(self, study: Study, trials: Sequence[Trial], elapsed_s: float) -> None:
        for trial, run in activity_words.validation_runs(study, trials):
            if run.run_id not in self._confirmed:
                self._confirmed.add(run.run_id)
                figure = study_words.rate(run.measurement.tokens_per_s_per_gpu if run.measurement else None)
                self._write(
                    f"validation run {len(self._confirmed)}: trial {trial.number}, "
                    f"{figure} tokens/s/GPU{kept_runs.kept_mark(study, trials, trial, run)}{_time_left_note(study, trials, elapsed_s)}"
                )

    def _print_disturbed(self, trials: Sequence[Trial]) -> None:
        # A disturbed attempt stays in the run's history; the set makes its line appear once.
        for trial, run, attempt in kept_runs.disturbed_attempts(trials):
            if (run.run_id, attempt.attempt) not in self._disturbed:
                self._disturbed.add((run.run_id, attempt.attempt))
                name = f"{study_words.run_name(run.purpose)} of trial {trial.number}, attempt {attempt.attempt}"
                cause = f" ({attempt.failure_message})" if attempt.failure_message else ""
                self._write(f"disturbed, does not count: {name}{cause}")

    def _print_waits(self, trials: Sequence[Trial]) -> None:
        """Print which programs a run waits for until its machine is quiet. The line is printed when the run begins to
        wait, and then once a minute."""
        for trial in trials:
            for run in trial.runs:
                progress = run.progress
                if run.state is not TrialState.RUNNING or progress is None or progress.phase != "waiting_for_quiet":
                    continue
                key = (run.run_id, len(run.attempts), int((progress.waited_s or 0.0) // 60))
                if key not in self._waits:
                    self._waits.add(key)
                    self._write(f"trial {trial.number}: {activity_words.describe_step(progress)}")

    def _print_rehearsals(self, trials: Sequence[Trial]) -> None:
        for trial, run in activity_words.runs_of(trials, "rehearsal", TrialState.COMPLETE):
            if run.run_id not in self._rehearsals and run.rehearsal is not None:
                self._rehearsals.add(run.run_id)
                problem = run.rehearsal.answers[-1].problem
                end = "built and stepped" if problem is None else f"{problem.code}: {problem.message}"
                self._write(f"rehearsal of trial {trial.number} at the target's number of ranks: {end}")

    def _print_whole_steps(self, study: Study, trials: Sequence[Trial]) -> None:
        for trial, run in activity_words.runs_of(trials, "validation", TrialState.COMPLETE):
            if run.is_whole_step and run.run_id not in self._whole_steps and run.measurement is not None:
                self._whole_steps.add(run.run_id)
                figure = study_words.rate(run.measurement.tokens_per_s_per_gpu)
                self._write(
                    f"whole steps after the verdict: trial {trial.number}, {figure} tokens/s/GPU"
                    f"{kept_runs.kept_mark(study, trials, trial, run)}"
                )

    def _print_resume_checks(self, trials: Sequence[Trial]) -> None:
        for trial, run in activity_words.runs_of(trials, "resume_check", TrialState.COMPLETE):
            if run.run_id not in self._resume_checks and run.resume_check is not None:
                self._resume_checks.add(run.run_id)
                self._write(
                    f"trial {trial.number} resumed from its own checkpoint in new processes "
                    f"(saved in {run.resume_check.save_s:.2f} s, loaded in {run.resume_check.load_s:.2f} s)"
                )

    def _print_sustained_runs(self, study: Study, trials: Sequence[Trial]) -> None:
        for trial, run in activity_words.runs_of(trials, "sustained", TrialState.COMPLETE):
            if run.run_id not in self._sustained_runs and run.measurement is not None:
                self._sustained_runs.add(run.run_id)
                figure = study_words.rate(run.measurement.tokens_per_s_per_gpu)
                mark = kept_runs.kept_mark(study, trials, trial, run)
                # Of the whole run; the answer states its second half.
                self._write(f"sustained run of trial {trial.number}: {figure} tokens/s/GPU over all its steps{mark}")

    def _print_recipe_runs(self, study: Study, trials: Sequence[Trial]) -> None:
        for trial, run in activity_words.runs_of(trials, "recipe", TrialState.COMPLETE):
            if run.run_id not in self._recipe_runs and run.measurement is not None:
                self._recipe_runs.add(run.run_id)
                self._write(
                    f"recipe run {len(self._recipe_runs)}: {run.recipe or 'as stated'}, "
                    f"{study_words.rate(run.measurement.tokens_per_s_per_gpu)} tokens/s/GPU"
                    f"{kept_runs.kept_mark(study, trials, trial, run)}"
                )

    def _print_rejections(self, rejections: Sequence[Rejection]) -> None:
        # The gate may reject thousands at once: the first few show the reason, the number shows the rest.
        new = rejections[self._rejected :]
        for rejection in new[:_MOST_REJECTIONS]:
            self._write(f"rejected by the memory gate: {study_words.rejection_text(rejection)}")
        if len(new) > _MOST_REJECTIONS:
            self._write(f"rejected by the memory gate: {len(new) - _MOST_REJECTIONS} more")
        self._rejected = len(rejections)

    def _summarize_earlier(self, study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection]) -> None:
        """Print one line for all trials that ended before the first call of `show`."""
        done = [trial for trial in trials if study_words.is_done(trial)]
        self._states = {trial.number: trial.state for trial in done}
        self._confirmed = {run.run_id for _, run in activity_words.validation_runs(study, trials)}
        self._disturbed = {(run.run_id, attempt.attempt) for _, run, attempt in kept_runs.disturbed_attempts(trials)}
        if study.result is not None:
            # The comparison of that result has ended: the runs after it are earlier ones, too.
            self._skip_runs_after_verdict(trials)
        self._comparison.skip_earlier(study, trials)
        self._rejected = len(rejections)
        confirmed = f" and {len(self._confirmed)} validation runs" if self._confirmed else ""
        self._write(f"{len(done)} trial{'s' * (len(done) != 1)}{confirmed} ended earlier")

    def _skip_runs_after_verdict(self, trials: Sequence[Trial]) -> None:
        self._whole_steps = activity_words.complete_run_ids(trials, RunPurpose.VALIDATION)
        self._resume_checks = activity_words.complete_run_ids(trials, RunPurpose.RESUME_CHECK)
        self._sustained_runs = activity_words.complete_run_ids(trials, RunPurpose.SUSTAINED)
        self._rehearsals = activity_words.complete_run_ids(trials, RunPurpose.REHEARSAL)
        self._recipe_runs = activity_words.complete_run_ids(trials, RunPurpose.RECIPE)


def _time_left_note(study: Study, trials: Sequence[Trial], elapsed_s: float) -> str:
    """Return the estimated remaining time of a study, in parentheses at the end of a line; empty if nothing is
    known."""
    remaining = time_left.words(study, trials, elapsed_s)
    return f" ({remaining})" if remaining else ""
