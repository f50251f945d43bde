"""Lines of a running study: each event once, with its reason."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import Attempt, Run, Trial, TrialState
from shardtune.service.cli.tune import live_table
from shardtune.service.cli.tune.progress_lines import LineView
from shardtune.service.wording import study_words
from shardtune.service.wording.progress import activity_words
from tests.support.values.tuner_inputs import measured
from tests.unit.service.cli.output.shown_studies import DDP, ZERO, rejected, study, trial


def test_lines_tell_each_event_once_with_its_reason() -> None:
    lines: list[str] = []
    view = LineView(lines.append)
    too_much = Failure(kind=FailureKind.OVER_LIMIT, message="took 5.1 GiB\nof 4.0")
    running = [trial(0, TrialState.RUNNING)]
    ended = [trial(0, TrialState.INFEASIBLE, failure=too_much)]
    for trials in (running, running, ended, ended):
        view.show(study(), trials, [], 5.0)
    assert len(lines) == 2
    assert (
        lines[1]
        == "trial 0 (1 of 8): DDP, micro batch 1 (a documented default): infeasible, over_limit: took 5.1 GiB of 4.0"
    )


def test_a_run_that_other_programs_disturbed_is_told_once() -> None:
    """The minutes it takes are seen to go, and nothing else would say where."""
    lines: list[str] = []
    view = LineView(lines.append)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    cause = "other programs kept 0.7 of 2 cores busy"
    lost = Attempt(
        attempt=1,
        worker="w",
        started_at=noon,
        finished_at=noon,
        end="disturbed",
        failure_message=cause,
        gpu_seconds=9.0,
    )
    run = Run(run_id="r", purpose="validation", final_comparison=1, state=TrialState.WAITING, attempts=(lost,))
    trials = [trial(0, TrialState.COMPLETE, runs=(run,))]
    view.show(study(), [], [], 1.0)
    for _ in range(2):
        view.show(study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=1), trials, [], 5.0)
    reported = [line for line in lines if "disturbed" in line]
    assert reported == [f"disturbed, does not count: validation run of trial 0, attempt 1 ({cause})"]


def lines_of_a_disturbed_trial(marks: dict[str, Any]) -> tuple[str, str]:
    """Lines about the search run and the validation run of a trial that were both disturbed."""
    run = measured(100.0).model_copy(update=marks)
    runs = [
        Run(run_id=purpose, purpose=purpose, final_comparison=number, state=TrialState.COMPLETE, measurement=run)
        for purpose, number in (("search", None), ("validation", 1))
    ]
    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [], [], 1.0)
    view.show(study(), [trial(0, TrialState.COMPLETE, tokens_per_s_per_gpu=100.0, runs=runs[:1])], [], 3.0)
    comparing = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=1)
    view.show(comparing, [trial(0, TrialState.COMPLETE, tokens_per_s_per_gpu=100.0, runs=runs)], [], 5.0)
    searched, validated = [line for line in lines if "(disturbed" in line and " tokens/s/GPU" in line]
    return searched, validated


def test_no_line_claims_that_a_disturbed_run_counts_before_its_pair_is_judged() -> None:
    busy = {"disturbed": "other programs kept 0.7 of 2 cores busy", "cores_left": 1.3}
    for line in lines_of_a_disturbed_trial(busy):
        assert "(disturbed)" in line and "counts" not in line


def test_no_line_blames_other_programs_where_only_the_spread_shows_a_disturbance() -> None:
    """A worker in a container may see no other program; the service then judges how far the windows lie apart."""
    for line in lines_of_a_disturbed_trial({"disturbed": "its timed windows lie apart by ±30% of the step time"}):
        assert "(disturbed)" in line and "other programs" not in line
    assert study_words.count_disturbed(3, 12) == "3 of 12 search runs were disturbed"


def test_the_end_of_the_search_follows_the_trial_that_ended_it() -> None:
    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [trial(7, TrialState.RUNNING)], [], 1.0)
    used_up = study(reason="all 8 trials of the budget are used", phase=StudyPhase.FINAL_COMPARISON)
    view.show(used_up, [trial(7, TrialState.COMPLETE, tokens_per_s_per_gpu=9.0)], [], 2.0)
    assert [line.split(":")[0] for line in lines[1:3]] == ["trial 7 (8 of 8)", "all 8 trials of the budget are used"]


def test_lines_of_validation_runs_say_how_long_the_study_still_takes() -> None:
    """A comparison of 17 minutes began with "about 11 min left", and then said nothing more."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    took = Attempt(attempt=1, worker="w", started_at=noon, finished_at=noon, end="complete", gpu_seconds=20.0)
    runs = [
        Run(run_id=purpose, purpose=purpose, final_comparison=1, state=TrialState.COMPLETE, attempts=(took,))
        for purpose in ("search", "validation")
    ]
    comparing = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=1, final_comparison_runs=48)
    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [], [], 1.0)
    view.show(comparing, [trial(0, TrialState.COMPLETE, runs=tuple(runs))], [], 5.0)
    (line,) = [line for line in lines if line.startswith("validation run 1: ")]
    assert re.search(r" tokens/s/GPU \(about .* left\)$", line)


def test_a_resumed_study_is_summed_up_not_told_again() -> None:
    lines: list[str] = []
    trials = [trial(0, TrialState.COMPLETE), trial(1, TrialState.RUNNING)]
    LineView(lines.append).show(study(), trials, [rejected(DDP, 5.0)], 1.0)
    assert lines == ["1 trial ended earlier", "trial 1 (2 of 8): ZeRO-2, micro batch 4 (a documented default): running"]


def test_why_a_study_waits_is_told_once_and_stands_below_the_table() -> None:
    """Without it the command would seem to hang."""
    lines: list[str] = []
    view = LineView(lines.append)
    waits = study(reason="waiting for a worker: w has torch 3 instead of 2; restore it")
    for state in (study(), waits, waits, study(), study()):
        view.show(state, [], [], 1.0)
    assert lines == ["waiting for a worker: w has torch 3 instead of 2; restore it", "the study goes on"]
    console = Console(width=120, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(live_table.render(waits, [], [], 1.0, rows=5))
    assert "why   waiting for a worker: w has torch 3" in captured.get()


def test_validation_runs_of_a_former_final_comparison_are_not_counted_again() -> None:
    def fresh(*final_comparisons: int) -> list[Trial]:
        runs = tuple(
            Run(run_id=f"r{i}", purpose="validation", final_comparison=number, state=TrialState.COMPLETE)
            for i, number in enumerate(final_comparisons)
        )
        return [trial(0, TrialState.COMPLETE, runs=runs)]

    lines: list[str] = []
    view = LineView(lines.append)
    view.show(study(), [], [], 1.0)
    for number, trials in ((1, fresh(1)), (1, fresh(1, 1)), (2, fresh(1, 1)), (3, fresh(1, 1, 3))):
        view.show(study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=number), trials, [], 1.0)
    assert [line.split(":")[0] for line in lines if line.startswith("validation run")] == [
        "validation run 1",
        "validation run 2",
        "validation run 1",
    ]
    extended = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=3)
    assert "run 2 of at most" in activity_words.activity(extended, fresh(1, 1, 3))


def test_what_the_memory_gate_rejected_is_told_with_its_reason() -> None:
    lines: list[str] = []
    view, rejections = (
        LineView(lines.append),
        [rejected(DDP, 6.0), rejected(DDP, 5.0), rejected(ZERO, 4.5), rejected(ZERO, 4.6)],
    )
    view.show(study(), [], rejections[:1], 1.0)
    view.show(study(), [], rejections, 1.0)
    assert lines == [
        f"rejected by the memory gate: {study_words.rejection_text(rejection)}" for rejection in rejections
    ]
    assert "DDP, micro batch 1: holds at least 6.0 GiB" in lines[0]
    nearest = ["DDP, micro batch 1: holds at least 5.0 GiB", "ZeRO-2, micro batch 4: holds at least 4.5 GiB"]
    assert study_words.closest_rejections(rejections) == nearest


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ((), "for a worker"),
        (("disturbed", "disturbed"), "for attempt 3, as attempt 2 was disturbed"),
        (("worker_lost",), "for attempt 2, as attempt 1 was lost with its worker"),
        (("crash",), "for attempt 2, as attempt 1 ended as crash"),
    ],
)
def test_a_trial_that_waits_says_for_what(ends: tuple[str, ...], reason: str) -> None:
    """Between two attempts, "trial 0: waiting" stood in the lines without a reason."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    attempts = tuple(
        Attempt(attempt=number, worker="w", started_at=noon, finished_at=noon, end=end, gpu_seconds=1.0)
        for number, end in enumerate(ends, 1)
    )
    run = Run(run_id="r", purpose="search", state=TrialState.WAITING, attempts=attempts)
    waiting = trial(0, TrialState.WAITING, runs=(run,))
    lines: list[str] = []
    LineView(lines.append).show(study(), [waiting], [], 5.0)
    assert f"trial 0 (1 of 8): DDP, micro batch 1 (a documented default): waiting {reason}" in lines
    console = Console(width=200)
    with console.capture() as captured:
        console.print(live_table.render(study(), [waiting], [], 1.0, rows=5))
    assert reason in captured.get()
