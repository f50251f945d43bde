"""Draw the live table of a running study on a terminal's stderr."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardtune.api_schemas.formatting import counted, memory_in_column
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import Rejection, Trial, TrialOrigin, TrialState
from shardtune.service.cli.tune.comparison_lines import ComparisonLines
from shardtune.service.wording import disambiguate, study_words
from shardtune.service.wording.progress import activity_words, time_left

_STYLES = {
    TrialState.COMPLETE: "green",
    TrialState.RUNNING: "cyan",
    TrialState.INFEASIBLE: "yellow",
    TrialState.FAILED: "red",
}
_ORIGINS = {TrialOrigin.BASELINE: "yours", TrialOrigin.DEFAULT: "documented default"}
_LINES_AROUND_TABLE = 10


class LiveView:
    """Progress view that redraws one table in place. Pairs of runs, and runs that are kept although they were disturbed, stand
    above it, as they do in plain lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._comparison = ComparisonLines(self.say)
        self._has_shown = False

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection], elapsed_s: float) -> None:
        """Draw the current state of the study."""
        if not self._has_shown and any(study_words.is_done(trial) for trial in trials):
            self._comparison.skip_earlier(study, trials)
        self._has_shown = True
        self._comparison.write_kept(study, trials)
        self._comparison.write_pairs(study, trials)
        self._live.update(render(study, trials, rejections, elapsed_s, self._console.height - _LINES_AROUND_TABLE))

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._live.console.print(Text(line))


def render(
    study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection], elapsed_s: float, rows: int
) -> RenderableType:
    """Return a table of the newest trials; the lines below it show the current activity and the fastest configuration
    so far."""
    best = study.best_so_far
    visible = _visible(trials, best.trial_number if best else None, max(rows, 4))
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("configuration", ratio=3, no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    table.add_column("tokens/s/GPU", justify="right", no_wrap=True)
    table.add_column("peak memory", justify="right", no_wrap=True)
    table.add_column("", ratio=2, no_wrap=True, overflow="ellipsis")
    descriptions = disambiguate.describe_trials(trials)
    for trial in visible:
        is_best = best is not None and trial.number == best.trial_number
        table.add_row(
            str(trial.number),
            Text(descriptions[trial.number]),
            Text(trial.state.value, style=_STYLES.get(trial.state, "")),
            study_words.rate(trial.tokens_per_s_per_gpu),
            _peak(trial, visible),
            Text(_note(trial, is_best), style="bold green" if is_best else "yellow"),
        )
    hidden = len(trials) - len(visible)
    return Group(
        table,
        # `Text`, here and above: a string would be parsed as Rich markup, and `[dim]` in a model's name would vanish.
        *([Text(f"      … and {hidden} earlier", style="dim")] if hidden else []),
        _footer(study, trials, rejections, elapsed_s),
    )


def _peak(trial: Trial, visible: Sequence[Trial]) -> str:
    """Format the peak memory of a trial for the column of the visible trials; empty if it is unknown."""
    peaks = [peak for shown in visible if (peak := study_words.peak_memory(shown)) is not None]
    peak = study_words.peak_memory(trial)
    return "" if peak is None else memory_in_column(peak, peaks)


def _visible(trials: Sequence[Trial], best: int | None, rows: int) -> list[Trial]:
    """Return the newest trials that fit on the screen, always including the fastest one."""
    newest = list(trials[-rows:])
    missing = [trial for trial in trials[:-rows] if trial.number == best]
    return missing + newest[len(missing) :]


def _footer(study: Study, trials: Sequence[Trial], rejections: Sequence[Rejection], elapsed_s: float) -> Text:
    lines = [f"now   {activity_words.activity(study, trials)}"]
    if study.reason is not None and study.state.is_open:
        lines.append(f"why   {study.reason}")
    if (advice := activity_words.describe_busy_search(study, trials)) is not None:
        lines.append(f"busy  {advice}")
    if rejections:
        lines.append(f"gate  rejected {len(rejections)}, last {study_words.rejection_text(rejections[-1])}")
    if study.best_so_far is not None:
        contender = study.best_so_far
        name = disambiguate.describe_among(contender, trials)
        lines.append(
            f"best  {name}: {study_words.rate(contender.tokens_per_s_per_gpu)} tokens/s/GPU (not yet confirmed)"
        )
    limit = study.spec.budget.max_trials
    ended = sum(study_words.is_done(trial) for trial in trials)
    counts = [f"{ended} of {limit} trials" if limit else counted(ended, "trial")]
    if study.phase is StudyPhase.FINAL_COMPARISON:
        shown = activity_words.of_most_validation_runs(study, len(activity_words.validation_runs(study, trials)))
        counts += [f"{shown} validation runs"] if activity_words.most_validation_runs(study) else []
    elif study.phase is not StudyPhase.DONE:
        counts.append(f"then about {time_left.validation_runs_expected(study)} validation runs")
    remaining = time_left.words(study, trials, elapsed_s)
    counts.append(f"{study_words.duration(elapsed_s)} so far" + (f", {remaining}" if remaining else ""))
    lines.append("time  " + ", ".join(counts))
    # One line each: a footer that wraps would push the table off the screen.
    return Text("\n" + "\n".join(lines), no_wrap=True, overflow="ellipsis")


def _note(trial: Trial, is_best: bool) -> str:
    origin = _ORIGINS.get(trial.origin, "")
    disturbed = "disturbed" if study_words.is_search_run_disturbed(trial) else ""
    waits = activity_words.waiting_reason(trial)
    state = "best so far" if is_best else study_words.failure_line(trial)
    return ", ".join(filter(None, [state, waits, disturbed, origin]))
