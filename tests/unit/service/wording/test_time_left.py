"""Estimated time left, compared with studies that were run on 2 CPU ranks: make tune and others of its size."""

from datetime import UTC, datetime, timedelta

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.trials.trial import Attempt, Run, RunPurpose, Trial, TrialOrigin, TrialState
from shardtune.service.wording.progress import time_left
from shardtune.service.wording.progress.compared_pairs import PairCounts
from shardtune.service.wording.progress.time_left import RunCounts
from tests.support.values.synthetic_studies import contender_of, study_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def running(trials, phase=StudyPhase.SEARCH, **changes):
    changed = study_of().model_copy(update={"state": StudyState.RUNNING, "phase": phase} | changes)
    return changed.model_copy(update={"spec": changed.spec.model_copy(update={"budget": Budget(max_trials=trials)})})


def seconds(words):
    *_, number, unit = words.split()
    return int(number) * (60 if unit == "min" else 1)


@pytest.mark.parametrize(("trials", "first_two", "took_s"), [(8, (13.6, 17.3), 313), (8, (15.6, 22.3), 323)])
def test_after_two_trials_the_time_left_is_right_within_a_factor_of_one_and_a_half(trials, first_two, took_s):
    stated_seconds = seconds(time_left.estimate(running(trials), RunCounts(2, min(first_two), 0, None), 40.0))
    assert took_s / 1.5 < stated_seconds < took_s * 1.5


def test_in_a_final_comparison_it_follows_from_the_validation_runs_it_may_take():
    study = running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=62)
    # 34 pairs fewer than it may take at most are usual.
    assert time_left.validation_runs_expected(study) == 62 - 2 * 17
    assert time_left.estimate(study, RunCounts(8, 5.0, 18, 10.0), 99.0) == "about 20 s to 2 min"
    assert time_left.estimate(study, RunCounts(8, 5.0, 30, 10.0), 99.0) == "at most 5 min"


def test_the_sustained_run_takes_its_seconds_until_it_is_over():
    study = running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=20)
    long = study.spec.budget.model_copy(update={"sustained_run_s": 600.0})
    study = study.model_copy(update={"spec": study.spec.model_copy(update={"budget": long})})
    counts = [RunCounts(8, 5.0, 20, 1.0, sustained_runs=done) for done in (0, 1)]
    assert [time_left.estimate(study, runs, 99.0) for runs in counts] == ["at most 10 min", ""]
    scripted = study.spec.model_copy(update={"model": study.spec.model.model_copy(update={"script": "mine"})})
    assert time_left.estimate(study.model_copy(update={"spec": scripted}), counts[0], 99.0) == "", "it makes none"


def test_recipes_beside_the_answer_take_three_runs_each_and_as_many_of_the_stated_one():
    study = running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=20)
    considering = with_muon_considered(study)
    assert time_left.recipe_runs_expected(study) == 0 and time_left.recipe_runs_expected(considering) == 6
    left = [time_left.estimate(considering, RunCounts(8, 5.0, 20, 1.0, done), 99.0) for done in (0, 4, 9)]
    assert left == ["at most 20 s", "about 2 s", "at most 11 s"], "at most ten blocks run, and mostly three"


def with_muon_considered(study, **changes):
    return study.model_copy(update={"spec": study.spec.model_copy(update={"consider": ("muon",)})} | changes)


def test_the_first_run_of_each_recipe_takes_the_steps_whose_losses_compare_too():
    study = with_muon_considered(running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=20))
    best = contender_of(TrialConfig(strategy=DdpConfig())).model_copy(update={"tokens_per_s_per_gpu": 1280.0})
    timed = study.model_copy(update={"best_so_far": best})
    # A step of 8 x 32 tokens takes 0.1 s at 2 x 1280 tokens/s.
    for done, loss_runs in ((1, 1), (2, 0)):
        runs = RunCounts(8, 5.0, 20, 1.0, done)
        loss_s = seconds(time_left.estimate(timed, runs, 9.0)) - seconds(time_left.estimate(study, runs, 9.0))
        assert loss_s == loss_runs * 200 * 0.1


def test_once_recipes_run_no_validation_run_is_left():
    study = with_muon_considered(running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=62))
    assert time_left.estimate(study, RunCounts(8, 5.0, 9, 1.0, 2), 9.0) == "about 4 s"


def test_a_study_of_the_service_runs_no_recipes():
    study = with_muon_considered(running(8), system_study=SystemStudy(kind=SystemStudyKind.SEARCH))
    assert time_left.recipe_runs_expected(study) == 0


def test_nothing_is_said_before_a_run_has_shown_how_long_one_takes():
    assert time_left.estimate(running(8), RunCounts(0, None, 0, None), 10.0) == ""


def test_runs_are_counted_with_the_seconds_they_held_their_worker():
    def run(purpose, *gpu_seconds, **changes):
        attempts = tuple(
            Attempt(
                attempt=number,
                worker="w",
                started_at=NOON,
                finished_at=NOON + timedelta(1),
                end="complete" if number == len(gpu_seconds) else "disturbed",
                gpu_seconds=seconds,
            )
            for number, seconds in enumerate(gpu_seconds, 1)
        )
        return Run(run_id="r", purpose=purpose, state=TrialState.COMPLETE, attempts=attempts, **changes)

    config = TrialConfig(strategy=DdpConfig())
    runs = (
        run(RunPurpose.SEARCH, 20.0),
        run(RunPurpose.VALIDATION, 26.0, 30.0, final_comparison=1),
        run(RunPurpose.RECIPE, 26.0, final_comparison=0),
        run(RunPurpose.RECIPE, 26.0, final_comparison=1),
    )
    trial = Trial(number=0, state=TrialState.COMPLETE, origin="default", config=config, description="DDP", runs=runs)
    assert time_left.count_runs(running(8, final_comparison=1), [trial]) == RunCounts(1, 10.0, 1, 28.0, 1), (
        "a repeat takes time, too"
    )
    repeated = (run(RunPurpose.SEARCH, 30.0, 26.0),)
    chosen = trial.model_copy(update={"number": 1, "origin": TrialOrigin.SAMPLER, "runs": repeated})
    counts = time_left.count_runs(running(8, final_comparison=1), [trial, chosen])
    assert (counts.shortest_search_s, counts.mean_chosen_s, counts.repeats_per_run) == (10.0, 13.0, 0.5)


def test_beside_a_steady_load_it_counts_the_repeats_that_the_budget_allows():
    """A study beside 0.7 cores of other load took 1,160 s more, and "about 8 min left" was said."""
    runs = RunCounts(3, 18.7, 0, None, mean_chosen_s=18.7, repeats_per_run=5 / 3)
    stated = time_left.estimate(running(8), runs, 188.0)
    assert 1160 / 1.5 < seconds(stated) < 1160 * 1.5
    assert " to " not in stated, "fewer pairs decide on a quiet machine alone"


def test_on_a_quiet_machine_fewer_pairs_may_decide():
    """A study on a quiet machine took 242 s more: three pairs decided it."""
    runs = RunCounts(3, 12.9, 0, None, mean_chosen_s=12.9)
    least, most = time_left.estimate(running(8), runs, 52.0).removeprefix("about ").split(" to ")
    # Both ends have the unit of the second.
    least = f"{least} {most.split()[-1]}" if least.isdecimal() else least
    assert 242 / 1.5 < seconds(least) < 242 * 1.5 and seconds(least) < seconds(most)


def test_the_time_left_does_not_jump_with_the_fourth_trial():
    """It rose from 5 to 8 min, as the factor between a seed and a later run depended on the number of trials."""
    before, after = (RunCounts(done, 12.9, 0, None, mean_chosen_s=13.0) for done in (3, 4))
    assert seconds(time_left.estimate(running(8), after, 67.0)) <= seconds(time_left.estimate(running(8), before, 52.0))


def test_near_the_end_the_time_of_all_pairs_is_no_promise():
    """`about 18 s left` was followed by `at most 10 min left`, and only the resume check came."""
    study = running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=16, final_comparison=1)
    short = study.spec.budget.model_copy(update={"max_pairs": 8})
    study = study.model_copy(update={"spec": study.spec.model_copy(update={"budget": short})})
    complete = timed_runs(14)
    assert time_left.words(study, [complete], 99.0) == "at most 20 s left if all 8 pairs are needed"
    checked = Run(run_id="c", purpose=RunPurpose.RESUME_CHECK, state=TrialState.WAITING)
    assert time_left.words(study, [complete.model_copy(update={"runs": (*complete.runs, checked)})], 99.0) == ""
    assert time_left.words(study, [timed_runs(12)], 99.0) == "about 20 s left"


@pytest.mark.parametrize(
    ("purpose", "state", "is_known"),
    [
        ("sustained", TrialState.COMPLETE, True),
        ("sustained", TrialState.FAILED, True),
        ("sustained", TrialState.CANCELLED, False),
        ("resume_check", TrialState.COMPLETE, True),
        ("resume_check", TrialState.INFEASIBLE, False),
    ],
)
def test_between_two_runs_after_the_verdict_no_pair_is_left(purpose, state, is_known):
    study = with_muon_considered(running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=62, final_comparison=1))
    trial = timed_runs(14)
    ended = trial.model_copy(update={"runs": (*trial.runs, Run(run_id="e", purpose=purpose, state=state))})
    recipes_alone = "about 60 s left"
    assert (time_left.words(study, [ended], 99.0) == recipes_alone) is is_known
    answered = study.model_copy(update={"result": "of an earlier comparison"})
    assert time_left.words(answered, [ended], 99.0) != recipes_alone, "the run may be older than the extension"


def test_a_failed_sustained_run_is_not_awaited_again():
    study = running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=16, final_comparison=1)
    long = study.spec.budget.model_copy(update={"sustained_run_s": 600.0})
    study = study.model_copy(update={"spec": study.spec.model_copy(update={"budget": long})})
    trial = timed_runs(14)
    failed = Run(run_id="f", purpose="sustained", state=TrialState.FAILED)
    ended = trial.model_copy(update={"runs": (*trial.runs, failed)})
    assert "10 min" in time_left.words(study, [trial], 99.0)
    assert time_left.words(study, [ended], 99.0) == ""


def timed_runs(validation_runs: int) -> Trial:
    """A trial whose search run and validation runs took 10 s each."""
    took = Attempt(attempt=1, worker="w", started_at=NOON, finished_at=NOON, end="complete", gpu_seconds=20.0)
    runs = tuple(
        Run(run_id=f"r{number}", purpose=purpose, final_comparison=1, state=TrialState.COMPLETE, attempts=(took,))
        for number, purpose in enumerate(["search", *["validation"] * validation_runs])
    )
    config = TrialConfig(strategy=DdpConfig())
    return Trial(number=0, state=TrialState.COMPLETE, origin="default", config=config, description="DDP", runs=runs)


def test_runs_of_pairs_that_are_left_out_are_not_done():
    """`about 8 s left` was followed by `at most 5 min left`, though one pair alone had been left out."""
    study = running(8, StudyPhase.FINAL_COMPARISON, final_comparison_runs=62)
    counts = [
        RunCounts(8, 5.0, 28, 10.0, repeats_per_run=0.5, pairs=pairs)
        for pairs in (PairCounts(7, 0), PairCounts(6, 1), PairCounts(2, 5))
    ]
    left = [time_left.estimate(study, runs, 99.0) for runs in counts]
    assert left == ["at most 6 min", "about 20 s", "about 3 min"], "5 of 7 left out: 10 runs, and 8 that may be"
    beyond = RunCounts(8, 5.0, 36, 10.0, repeats_per_run=0.5, pairs=PairCounts(8, 4))
    assert time_left.estimate(study, beyond, 99.0) == "at most about 8 min"


def test_so_many_pairs_left_out_as_end_the_comparison_are_the_most_that_are_expected():
    assert PairCounts(0, 11).expected_repeats(14, 24) == 2
    assert PairCounts(0, 12).expected_repeats(14, 24) == 0 == PairCounts(7, 0).expected_repeats(14, 24)


def test_one_pair_left_out_of_one_does_not_promise_that_all_others_will_be():
    assert 0 < PairCounts(0, 1).expected_repeats(14, 24) < 14


@pytest.mark.parametrize(
    ("least_s", "most_s", "text"),
    [
        (180, 300, "about 3 to 5 min"),
        (73, 120, "about 1 to 2 min"),
        (50, 86, "about 50 to 86 s"),
        (20, 120, "about 20 s to 2 min"),
        (80, 95, "about 1 to 2 min"),
        (170, 180, "about 3 min"),
        (0, 80, "about 80 s"),
        (2700, 6000, "about 45 min to 1 h 40 min"),
        (5500, 6000, "about 1 h 32 min to 1 h 40 min"),
        (0, 0, ""),
    ],
)
def test_a_time_between_two_numbers_has_one_unit(least_s: float, most_s: float, text: str) -> None:
    """`about 2 min to 3 min left` and `about 73 s to 2 min left` were said."""
    assert time_left._about(least_s, most_s) == text
