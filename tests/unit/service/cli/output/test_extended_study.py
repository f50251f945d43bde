"""Lines of a study that is continued or extended: nothing that an earlier command printed is printed as new."""

from collections.abc import Callable
from functools import partial

import pytest
from rich.console import Console

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.api_schemas.trials.trial import Run, RunPurpose, Trial, TrialState
from shardtune.service.cli.tune.comparison_lines import ComparisonLines
from shardtune.service.cli.tune.live_table import LiveView
from shardtune.service.cli.tune.progress_lines import LineView
from tests.support.values.tuner_inputs import measured
from tests.unit.service.cli.output.shown_studies import CONFIRMED, study, trial

MakeView = Callable[[Callable[[str], None]], LineView | LiveView]


def run_of(purpose: RunPurpose, block: int | None = None, **changes: object) -> Run:
    values = {
        "run_id": f"{purpose.value}-{block}",
        "purpose": purpose,
        "state": TrialState.COMPLETE,
        "final_comparison": 1,
    }
    return Run.model_validate(values | {"measurement": measured(100.0), "comparison_block": block} | changes)


def pair(block: int) -> tuple[Run, Run]:
    first, second = (run_of(RunPurpose.VALIDATION, block, run_id=f"{name}-{block}") for name in ("a", "b"))
    return first, second


def live_view(write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> LiveView:
    """Make a live table whose lines above the table go to `write`."""
    monkeypatch.setattr(LiveView, "say", lambda _, line: write(line))
    return LiveView(Console(quiet=True))


def lines_after_the_first(extended: Study, *states: list[Trial], make_view: MakeView = LineView) -> list[str]:
    lines: list[str] = []
    view = make_view(lines.append)
    view.show(extended, states[0], [], 1.0)
    del lines[:]
    for trials in states[1:]:
        view.show(extended, trials, [], 2.0)
    return lines


def two_trials(baseline_runs: list[Run], candidate_runs: list[Run]) -> list[Trial]:
    candidate = trial(1, TrialState.COMPLETE, runs=tuple(candidate_runs), tokens_per_s_per_gpu=100.0)
    return [
        trial(0, TrialState.COMPLETE, runs=tuple(baseline_runs), tokens_per_s_per_gpu=100.0),
        candidate.model_copy(update={"origin": "sampler"}),
    ]


@pytest.mark.parametrize("is_live", [False, True])
def test_the_last_pair_of_an_ended_comparison_is_not_printed_as_a_new_one(
    is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--add-pairs` began with the line of a pair that the study had run before."""
    comparing = study(phase=StudyPhase.FINAL_COMPARISON, final_comparison=1, final_comparison_runs=48, result=CONFIRMED)
    old, new = (pair(1), pair(2)), pair(3)
    opened = run_of(RunPurpose.VALIDATION, 4, state=TrialState.RUNNING, measurement=None)
    before = two_trials([runs[0] for runs in old], [runs[1] for runs in old])
    after = two_trials([*(runs[0] for runs in old), new[0], opened], [*(runs[1] for runs in old), new[1]])
    make_view: MakeView = partial(live_view, monkeypatch=monkeypatch) if is_live else LineView
    lines = lines_after_the_first(comparing, before, after, make_view=make_view)
    printed = [line for line in lines if line.startswith("pair")]
    assert [line.partition(":")[0] for line in printed] == ["pairs", "pair 3 of at most 24"]
    # The live table has only these lines in common with the plain ones.
    above_table: list[str] = []
    lines = ComparisonLines(above_table.append)
    lines.skip_earlier(comparing, before)
    lines.write_pairs(comparing, after)
    assert [line.partition(":")[0] for line in above_table] == ["pairs", "pair 3 of at most 24"]


@pytest.mark.parametrize("purpose", [RunPurpose.RESUME_CHECK, RunPurpose.SUSTAINED, RunPurpose.RECIPE, "whole steps"])
def test_runs_after_an_earlier_verdict_are_not_printed_as_new(purpose: RunPurpose | str) -> None:
    check = ResumeMeasurement.model_construct(save_s=0.1, load_s=0.1)
    if purpose == "whole steps":
        run = run_of(RunPurpose.VALIDATION, 99, is_whole_step=True)
    else:
        run = run_of(RunPurpose(purpose))
    run = run.model_copy(update={"resume_check": check if purpose == RunPurpose.RESUME_CHECK else None})
    trials = two_trials([], [run])
    lines: list[str] = []
    view = LineView(lines.append)
    extended = study(phase=StudyPhase.SEARCH, final_comparison=1, result=CONFIRMED)
    view.show(extended, trials, [], 1.0)
    assert lines == ["2 trials ended earlier"]
    later = run.model_copy(update={"run_id": "later"})
    assert len(lines_after_the_first(extended, trials, two_trials([], [run, later]))) == 1, "a new run is printed"
