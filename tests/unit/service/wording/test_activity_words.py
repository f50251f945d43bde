"""Counts of validation runs where pairs that do not count run again, so that there are more than planned."""

import pytest
from rich.console import Console

from shardtune.api_schemas.machines.conditions import Conditions, ProgramLoad
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import Run, Trial, TrialState
from shardtune.service.cli.tune import live_table
from shardtune.service.cli.tune.progress_lines import LineView
from shardtune.service.wording.progress import activity_words, time_left
from shardtune.service.wording.progress.time_left import RunCounts
from tests.support.service.simulated_worker import measurement
from tests.support.values.synthetic_studies import study_of


def comparing(most: int) -> Study:
    changes = {"state": StudyState.RUNNING, "phase": StudyPhase.FINAL_COMPARISON, "result": None}
    study = study_of().model_copy(update=changes | {"final_comparison_runs": most, "final_comparison": 1})
    return study.model_copy(update={"spec": study.spec.model_copy(update={"budget": Budget(max_trials=8)})})


def with_validation_runs(count: int) -> list[Trial]:
    runs = tuple(
        Run(run_id=f"r{number}", purpose="validation", final_comparison=1, state=TrialState.COMPLETE)
        for number in range(count)
    )
    config = TrialConfig(strategy=DdpConfig())
    return [
        Trial(
            number=0,
            state=TrialState.COMPLETE,
            origin="default",
            config=config,
            description=config.describe(),
            runs=runs,
        )
    ]


def test_a_repeated_pair_is_no_run_beyond_the_maximum() -> None:
    study = comparing(18)
    assert activity_words.validation_run(study, 18) == "validation run 18 of at most 18"
    assert activity_words.validation_run(study, 20) == "validation run 20 (at most 18 if every pair counts)"
    assert activity_words.validation_position(study, 17) == "validation run 18 of at most 18"
    assert activity_words.validation_position(study, 18) == "18 validation runs are done"


@pytest.mark.parametrize(
    ("most", "parts"),
    [
        (24, " (up to 10 runs that choose what to pair, then up to 7 pairs)"),
        (15, " (up to 1 run that chooses what to pair, then up to 7 pairs)"),
        (14, " (up to 7 pairs)"),
    ],
)
def test_the_maximum_of_runs_is_explained_by_the_pairs(most: int, parts: str) -> None:
    """`--max-pairs 7` seemed ignored: `run 1 of at most 24` counts runs, two of each pair."""
    study = comparing(most)
    seven = study.spec.model_copy(update={"budget": Budget(max_trials=8, max_pairs=7)})
    study = study.model_copy(update={"spec": seven})
    assert activity_words.final_comparison_position(study, []) == f"final comparison, run 1 of at most {most}{parts}"
    assert activity_words.validation_run(study, 10) == f"validation run 10 of at most {most}"


def test_pairs_run_again_only_where_a_run_of_a_pair_is_open() -> None:
    """Before the resume check of an undecided winner, all pairs under equal load were said to run again."""
    (trial,) = with_validation_runs(14)
    assert activity_words.activity(comparing(14), [trial]) == "14 validation runs are done"
    open_run = Run(run_id="again", purpose="validation", final_comparison=1, state=TrialState.WAITING)
    repeated = trial.model_copy(update={"runs": (*trial.runs, open_run)})
    expected = "final comparison, run 15: pairs that do not count run again"
    assert activity_words.activity(comparing(14), [repeated]) == expected


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.COMPLETE])
def test_runs_that_time_whole_steps_are_no_runs_of_the_comparison(state: TrialState) -> None:
    """`validation run 15 (at most 14 if every pair counts)` was said of the first of them."""
    (trial,) = with_validation_runs(14)
    whole = Run(run_id="whole", purpose="validation", final_comparison=1, is_whole_step=True, state=state)
    whole = whole.model_copy(update={"measurement": measurement(1000.0)})
    timed = trial.model_copy(update={"runs": (*trial.runs, whole)})
    running = "timing whole steps, trial 0: starting ranks"
    expected = running if state is TrialState.RUNNING else "14 validation runs are done"
    assert activity_words.activity(comparing(14), [timed]) == expected
    assert time_left.count_runs(comparing(14), [timed]).validation_runs == 14
    lines: list[str] = []
    LineView(lines.append).show(comparing(14), [timed], [], 1.0)
    assert any(line.startswith("whole steps after the verdict: trial 0, ") for line in lines) == (
        state is TrialState.COMPLETE
    )
    assert not any("validation run 15" in line for line in lines)


def test_live_lines_and_the_live_table_count_repeated_pairs() -> None:
    lines: list[str] = []
    view = LineView(lines.append)
    for count in (0, 2):
        view.show(comparing(1), with_validation_runs(count)[:count], [], 1.0)
    assert [line.partition(": ")[0] for line in lines if line.startswith("validation run")] == [
        "validation run 1",
        "validation run 2",
    ]
    console = Console(width=140)
    with console.capture() as captured:
        console.print(live_table.render(comparing(1), with_validation_runs(2), [], 1.0, rows=5))
    assert "2 (at most 1 if every pair counts) validation runs" in captured.get()


@pytest.mark.parametrize("complete", [18, 20])
def test_no_time_is_left_known_while_pairs_run_again(complete: int) -> None:
    """`at most -20 s left` was said."""
    assert time_left.estimate(comparing(18), RunCounts(8, 5.0, complete, 10.0), 99.0) == ""


def searched(disturbed: str | None, cores_left: float | None = 1.4) -> Trial:
    seen = Conditions(foreign_cpu_cores=0.6, foreign_programs=(ProgramLoad(name="chrome", cores=0.6),))
    seen = seen if cores_left is not None else Conditions()
    marks = {"disturbed": disturbed, "conditions": seen, "cores_left": cores_left}
    measured = measurement(1000.0).model_copy(update=marks)
    run = Run(run_id="s", purpose="search", state=TrialState.COMPLETE, measurement=measured)
    return with_validation_runs(0)[0].model_copy(update={"runs": (run,)})


@pytest.mark.parametrize("view", ["lines", "table"])
def test_a_comparison_after_a_wholly_disturbed_search_says_how_to_get_a_verdict(view: str) -> None:
    def shown(*trials: Trial) -> str:
        if view == "table":
            console = Console(width=200, record=True)
            console.print(live_table.render(comparing(18), trials, (), 1.0, 9))
            return console.export_text()
        lines = list[str]()
        LineView(lines.append).show(comparing(18), trials, (), 1.0)
        return "\n".join(lines)

    busy = searched("other programs kept 0.6 of 2 cores busy")
    advice = "end other programs (chrome on 0.6 cores) now: they disturbed every run so far, and a gain is"
    assert advice in shown(busy, busy, busy) and "begin again" not in shown(busy, busy, busy)
    assert "is confirmed only" not in shown(busy, busy, busy, searched(None))


def test_a_search_that_an_unknown_cause_disturbed_blames_no_programs() -> None:
    spread = searched("its timed windows lie apart by ±30% of the step time", None)
    advice = activity_words.describe_busy_search(comparing(18), (spread, spread, spread))
    assert advice is not None and "programs" not in advice
    assert "by what is not known (the last run: its timed windows lie apart by ±30% of the step time)" in advice


@pytest.mark.parametrize(
    ("most", "plan"),
    [
        (24, "up to 10 validation runs choose the two trials to compare, then up to 7 pairs of runs compare them"),
        (15, "up to 1 validation run chooses the two trials to compare, then up to 7 pairs of runs compare them"),
        (14, "up to 7 pairs of runs decide"),
    ],
)
def test_a_comparison_begins_with_its_plan(most: int, plan: str) -> None:
    """`run 17 of at most 68` and `3 of at most 24 pairs` counted different things."""
    study = comparing(most)
    seven = study.spec.model_copy(update={"budget": Budget(max_trials=8, max_pairs=7)})
    study = study.model_copy(update={"spec": seven})
    assert activity_words.comparison_plan(study, []) == f"final comparison: {plan}"
    later = activity_words.comparison_plan(study, with_validation_runs(3))
    assert later == "final comparison, continued after 3 validation runs: up to 7 pairs of runs decide"


def test_a_comparison_without_pairs_has_no_plan_of_pairs() -> None:
    alone = comparing(0)
    assert activity_words.comparison_plan(alone, []) == activity_words.activity(alone, [])
    assert "pairs" not in activity_words.comparison_plan(comparing(4), [])
