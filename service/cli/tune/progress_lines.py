"""A running study as plain lines on stderr, one for each thing that happened: for logs and pipes."""

from collections.abc import Callable, Iterator, Sequence

from shardtune.api_schemas.studies.study import Study, StudyPhase
from shardtune.api_schemas.trials.trial import AttemptEnd, Rejection, Run, Trial, TrialState
from shardtune.service.wording import disambiguate, study_words, time_left

_TOLD_AT_ONCE = 3


class LineView:
    """Prints what changed since the last look."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase: StudyPhase | None = None
        self._states: dict[int, TrialState] = {}
        self._confirmed: set[str] = set()
        self._final_comparison = 0
        self._rejected = 0
        self._restarted: set[str] = set()
        self._disturbed: set[tuple[str, int]] = set()

    def __enter__(self) -> "LineView":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def say(self, line: str) -> None:
        """Print a line."""
        self._write(line)

    def show(self, study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection], elapsed_s: float) -> None:
        """Print the differences to the last call."""
        if study.final_comparison != self._final_comparison:
            self._final_comparison, self._confirmed = study.final_comparison, set()
        if self._phase is None and any(study_words.is_done(trial) for trial in trials):
            self._take_up(study, trials, rejections)
        for trial in trials:
            if self._states.get(trial.number) is not trial.state:
                self._states[trial.number] = trial.state
                self._write(_trial_line(study, trial, trials, elapsed_s))
        self._tell_rejections(rejections)
        if study.phase is not self._phase and study.phase is not StudyPhase.DONE:
            self._phase = study.phase
            if study.phase is not StudyPhase.SEARCH:
                self._write(study_words.activity(study, trials))
        self._tell_disturbed(trials)
        for trial, run in study_words.validation_runs(study, trials):
            if run.run_id not in self._confirmed:
                self._confirmed.add(run.run_id)
                figure = study_words.rate(run.measurement.tokens_per_s_per_gpu if run.measurement else None)
                self._write(
                    f"validation run {len(self._confirmed)} of at most {study_words.most_confirm_runs(study)}: "
                    f"trial {trial.number}, {figure} tokens/s/GPU"
                )
        self._tell_restarts(trials)

    def _tell_disturbed(self, trials: Sequence[Trial]) -> None:
        for trial, run, attempt in _disturbed(trials):
            if (run.run_id, attempt) not in self._disturbed:
                self._disturbed.add((run.run_id, attempt))
                name = study_words.kind_of_run(run.purpose)
                self._write(f"disturbed by other programs, repeated: {name} of trial {trial.number}, attempt {attempt}")

    def _tell_restarts(self, trials: Sequence[Trial]) -> None:
        for trial, run in study_words.runs_of(trials, "resume_check", TrialState.COMPLETE):
            if run.run_id not in self._restarted and run.resume_check is not None:
                self._restarted.add(run.run_id)
                self._write(
                    f"trial {trial.number} went on from its own checkpoint in new processes "
                    f"(saved in {run.resume_check.save_s:.2f} s, loaded in {run.resume_check.load_s:.2f} s)"
                )

    def _tell_rejections(self, rejections: Sequence[Rejection]) -> None:
        new = rejections[self._rejected :]
        for rejection in new[:_TOLD_AT_ONCE]:
            self._write(f"rejected by the memory gate: {study_words.rejection_text(rejection)}")
        if len(new) > _TOLD_AT_ONCE:
            self._write(f"rejected by the memory gate: {len(new) - _TOLD_AT_ONCE} more")
        self._rejected = len(rejections)

    def _take_up(self, study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection]) -> None:
        """What was there before the first look is summed up, not told again."""
        done = [trial for trial in trials if study_words.is_done(trial)]
        self._states = {trial.number: trial.state for trial in done}
        self._confirmed = {run.run_id for _, run in study_words.validation_runs(study, trials)}
        self._disturbed = {(run.run_id, attempt) for _, run, attempt in _disturbed(trials)}
        self._rejected = len(rejections)
        confirmed = f" and {len(self._confirmed)} validation runs" if self._confirmed else ""
        self._write(f"{len(done)} trials{confirmed} are there already")


def _disturbed(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Run, int]]:
    """Attempts that count for nothing, since other programs kept the machine busy."""
    for trial in trials:
        for run in trial.runs:
            for one in run.attempts:
                if one.end is AttemptEnd.DISTURBED:
                    yield trial, run, one.attempt


def _trial_line(study: Study, trial: Trial, trials: Sequence[Trial], elapsed_s: float) -> str:
    limit = study.spec.budget.max_trials
    name = f"trial {trial.number}" + (f" ({trial.number + 1} of {limit})" if limit else "")
    described = disambiguate.of_trials(trials)[trial.number]
    if trial.state is TrialState.COMPLETE:
        best = study.best_so_far is not None and study.best_so_far.trial_number == trial.number
        line = (
            f"{name}: {described}: {study_words.rate(trial.tokens_per_s_per_gpu)} tokens/s/GPU, "
            f"{study_words.memory(study_words.peak_memory(trial))}{study_words.predicted(trial)}{study_words.tested(trial)}"
            + (", best so far" if best else "")
        )
        left = time_left.left(study, time_left.made_by(study, trials), elapsed_s)
        return line + (f" ({left} left)" if left else "")
    why = study_words.reason(trial) or study_words.pruned(trial)
    return f"{name}: {described}: {trial.state.value}" + (f", {why}" if why else "")
