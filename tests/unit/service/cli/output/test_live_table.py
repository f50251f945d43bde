"""Table of a running study, and the words for what it does now."""

import pytest
from rich.console import Console

from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.trial import Run, TrialState
from shardtune.service.cli.tune import live_table
from shardtune.service.wording.progress import activity_words
from tests.unit.service.cli.output.shown_studies import DDP, ZERO, contender, rejected, study, trial


def test_where_one_configuration_is_left_no_run_is_counted() -> None:
    """`run 1 of at most 0` was said."""
    alone = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison_runs=0)
    assert "there is only one configuration" in activity_words.activity(alone, [trial(0, TrialState.COMPLETE)])
    console = Console(width=120)
    with console.capture() as captured:
        console.print(live_table.render(alone, [trial(0, TrialState.COMPLETE)], [], 1.0, rows=5))
    assert "at most" not in captured.get()


def test_the_table_fits_the_screen_and_keeps_the_best() -> None:
    trials = [trial(number, TrialState.COMPLETE, tokens_per_s_per_gpu=float(number)) for number in range(30)]
    shown = study(best_so_far=contender(2, ZERO, 99.0), phase=StudyPhase.SEARCH)
    console = Console(width=120, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(live_table.render(shown, trials, [rejected(DDP, 5.0)], 12.0, rows=10))
    text = captured.get()
    assert len(text.splitlines()) <= 19
    assert "best so far" in text and "20 earlier" in text and "12 s so far" in text


def test_one_large_peak_leaves_the_small_ones_of_the_table_their_digits() -> None:
    peaks = (0.00312, 0.00274, 12.5)
    trials = [trial(number, TrialState.COMPLETE, peak_allocated_gib=peak) for number, peak in enumerate(peaks)]
    console = Console(width=120)
    with console.capture() as captured:
        console.print(live_table.render(study(), trials, [], 1.0, rows=5))
    assert all(peak in captured.get() for peak in ("3.19 MiB", "2.81 MiB", "12.5 GiB"))


@pytest.mark.parametrize(
    ("phase", "progress", "words"),
    [
        (StudyPhase.MODEL_SUMMARY, None, "counting the model's parameters"),
        (StudyPhase.SEARCH, Progress(phase="warming_up", step=4), "searching, trial 1: warming up, step 4"),
        (
            StudyPhase.FINAL_COMPARISON,
            None,
            "final comparison, run 1 of at most 66 (up to 18 runs that choose what to pair, then up to 24 pairs), trial 1: starting ranks",
        ),
    ],
)
def test_the_activity_is_in_words(phase: StudyPhase, progress: Progress | None, words: str) -> None:
    purpose = "validation" if phase is StudyPhase.FINAL_COMPARISON else "search"
    run = Run(run_id="r", purpose=purpose, state=TrialState.RUNNING, progress=progress)
    assert words in activity_words.activity(study(phase=phase), [trial(1, TrialState.RUNNING, runs=(run,))])
