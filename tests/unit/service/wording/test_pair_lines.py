"""Lines about the pairs of a final comparison, and why it ended before its maximum."""

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import FinalComparison, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.verdicts import BusyMachine
from shardtune.api_schemas.trials.trial import Run, RunPurpose, Trial, TrialOrigin, TrialState
from shardtune.service.cli.tune.comparison_lines import ComparisonLines
from shardtune.service.wording.progress.pair_lines import end_of_pairs, pair_lines, paired_trials
from tests.support.service.simulated_worker import measurement
from tests.support.values.synthetic_studies import contender_of, study_of

CONFIG = TrialConfig(strategy=DdpConfig())
DEFAULT, SAMPLER = TrialOrigin.DEFAULT, TrialOrigin.SAMPLER


def comparing() -> Study:
    changes = {"state": StudyState.RUNNING, "phase": StudyPhase.FINAL_COMPARISON, "final_comparison": 1}
    return study_of().model_copy(update=changes)


def run_of(block: int, speed: float, cores_left: float | None = None, foreign: float | None = None) -> Run:
    marks: dict[str, object] = {} if cores_left is None else {"disturbed": "other programs", "cores_left": cores_left}
    marks |= {} if foreign is None else {"conditions": Conditions(foreign_cpu_cores=foreign)}
    return Run(
        run_id=f"{block}-{speed}",
        purpose="validation",
        final_comparison=1,
        comparison_block=block,
        state=TrialState.COMPLETE,
        measurement=measurement(speed).model_copy(update=marks),
    )


def open_run(purpose: RunPurpose, block: int | None = None) -> Run:
    return Run(
        run_id="open", purpose=purpose, final_comparison=1, comparison_block=block, state=TrialState.WAITING
    )  # fmt: skip


def trial_of(number: int, origin: TrialOrigin, *runs: Run) -> Trial:
    return Trial(
        number=number,
        state=TrialState.COMPLETE,
        origin=origin,
        config=CONFIG,
        description=CONFIG.describe(),
        runs=runs,
    )


def test_a_complete_pair_is_printed_with_its_ratio() -> None:
    baseline = trial_of(0, DEFAULT, run_of(4, 880.0), run_of(5, 944.0))
    candidate = trial_of(7, SAMPLER, run_of(4, 1622.0), open_run(RunPurpose.VALIDATION, 5))
    assert pair_lines(comparing(), [baseline, candidate]) == {
        4: "pair 1 of at most 24: trial 7's 1,622 against the baseline's 880 tokens/s/GPU, 1.84x"
    }


def test_the_newest_block_is_a_pair_only_once_a_later_run_is_planned() -> None:
    """Two of the three runs of a screening block would look like a pair."""
    baseline, candidate = trial_of(0, DEFAULT, run_of(4, 880.0)), trial_of(7, SAMPLER, run_of(4, 1622.0))
    assert pair_lines(comparing(), [baseline, candidate]) == {}
    checked = candidate.model_copy(update={"runs": (*candidate.runs, open_run(RunPurpose.RESUME_CHECK))})
    assert list(pair_lines(comparing(), [baseline, checked])) == [4]
    third = trial_of(5, SAMPLER, run_of(4, 1500.0))
    assert pair_lines(comparing(), [baseline, checked, third]) == {}


def test_two_documented_defaults_are_no_pair() -> None:
    first, second = trial_of(0, DEFAULT, run_of(0, 880.0), run_of(1, 870.0)), trial_of(1, DEFAULT, run_of(0, 400.0))
    assert pair_lines(comparing(), [first, second]) == {}


def test_a_pair_under_unequal_load_is_left_out_and_not_counted() -> None:
    baseline = trial_of(0, DEFAULT, run_of(4, 835.0, 1.4), run_of(5, 700.0, 1.2), run_of(6, 880.0))
    candidate = trial_of(7, SAMPLER, run_of(4, 1331.0), run_of(5, 1050.0, 1.2), open_run(RunPurpose.VALIDATION, 6))
    assert pair_lines(comparing(), [baseline, candidate]) == {
        4: "pair left out: trial 7's 1,331 against the baseline's 835 tokens/s/GPU, 1.59x; only one of its two runs was disturbed",
        5: "pair 1 of at most 24: trial 7's 1,050 against the baseline's 700 tokens/s/GPU, 1.50x (both disturbed, with about equal load on average)",
    }


def test_a_pair_that_is_left_out_says_how_many_cores_were_busy() -> None:
    baseline = trial_of(0, DEFAULT, run_of(4, 835.0, 1.4, 0.6), run_of(5, 700.0, 0.8, 1.24), run_of(6, 880.0))
    arms = (run_of(4, 1331.0, foreign=0.1), run_of(5, 1050.0, 0.76, 1.16), open_run(RunPurpose.VALIDATION, 6))
    (first, second) = pair_lines(comparing(), [baseline, trial_of(7, SAMPLER, *arms)]).values()
    assert first.endswith(
        "; unequal load: on average, other programs took 0.1 CPU cores beside the candidate, 0.6 beside the baseline"
    )
    assert second.endswith("1.50x (both disturbed, with about equal load on average)")
    assert left_out((None, 0.62), (None, 0.58)).endswith(
        "took 0.62 CPU cores beside the candidate, 0.58 beside the baseline"
    )


def left_out(candidate: tuple[float | None, float], baseline: tuple[float | None, float]) -> str:
    """Line about a pair of disturbed runs, each with the cores that were left and the cores that others took."""
    runs = []
    for cores_left, foreign in (candidate, baseline):
        run = run_of(4, 835.0, 0.0, foreign)
        assert run.measurement is not None
        measured = run.measurement.model_copy(update={"cores_left": cores_left})
        runs.append(run.model_copy(update={"measurement": measured}))
    trials = [trial_of(0, DEFAULT, runs[1]), trial_of(7, SAMPLER, runs[0], open_run(RunPurpose.VALIDATION, 6))]
    (line,) = pair_lines(comparing(), trials).values()
    return line


def test_a_pair_that_is_left_out_says_how_many_cores_were_left() -> None:
    """1.66 and 1.71 busy cores of 2 were called unequal load."""
    line = left_out((0.34, 1.66), (0.29, 1.71))
    assert line.endswith("; unequal load: on average, 0.34 CPU cores were left to the candidate, 0.29 to the baseline")
    assert "0.6 CPU cores were left to the candidate, 1.4 to" in left_out((0.6, 1.4), (1.4, 0.6))


def ended(verdict: Verdict, ratios: tuple[float, ...], disturbed_pairs: int = 0, uneven_pairs: int = 0) -> Study:
    pairs = len(ratios)
    comparison = FinalComparison(
        number=1,
        candidates=(7,),
        pairs=pairs,
        disturbed_pairs=disturbed_pairs,
        runs=2 * (pairs + uneven_pairs),
        gpu_seconds=1,
        ratios=ratios,
        uneven_pairs=uneven_pairs,
    )
    busy = BusyMachine(
        rests_on="pairs",
        runs=2 * (pairs + uneven_pairs),
        disturbed_runs=2 * disturbed_pairs,
        uneven_pairs=uneven_pairs,
        missing_runs=2,
    )
    result = StudyResult(
        best=contender_of(CONFIG),
        baseline=contender_of(CONFIG),
        speedup=None,
        verdict=verdict,
        final_comparison=comparison,
        too_busy=busy if verdict is Verdict.TOO_BUSY else None,
    )
    return comparing().model_copy(update={"state": StudyState.COMPLETE, "phase": StudyPhase.DONE, "result": result})


def test_the_end_of_the_comparison_is_explained() -> None:
    """It stopped at run 28 of at most 68 without a word."""
    after = "the final comparison ended after 7 of at most 24 pairs: "
    assert end_of_pairs(ended(Verdict.CONFIRMED, (1.5,) * 7)) == f"{after}enough for the verdict"
    assert end_of_pairs(ended(Verdict.TOO_BUSY, (1.5,) * 7, 7)) == (
        f"{after}the candidate won all of them; more disturbed pairs cannot confirm it, an undisturbed one can"
    )
    assert end_of_pairs(ended(Verdict.TOO_BUSY, (1.5,) * 7, 7, uneven_pairs=7)) == (
        f"{after.removesuffix(': ')} (7 more were left out): the candidate won all of them; more disturbed pairs cannot confirm it, an undisturbed one can"
    ), "the pairs that were left out did not end it"
    assert end_of_pairs(ended(Verdict.TOO_BUSY, (1.5,) * 3, 3, uneven_pairs=12)) is None
    assert end_of_pairs(ended(Verdict.TOO_BUSY, (1.5,) * 6 + (0.9,), 7)) is None
    assert end_of_pairs(ended(Verdict.CONFIRMED, (1.5,) * 24)) is None
    assert end_of_pairs(ended(Verdict.CONFIRMED, (1.5,) * 7, uneven_pairs=2)) == (
        "the final comparison ended after 7 of at most 24 pairs (2 more were left out): enough for the verdict"
    )


def test_the_two_trials_of_the_pairs_are_named_with_the_reason() -> None:
    """Several candidates ran again, and then one of them was in the pairs without a word."""
    baseline = trial_of(0, DEFAULT, run_of(3, 870.0), run_of(4, 880.0), run_of(5, 944.0))
    candidate = trial_of(7, SAMPLER, run_of(3, 1630.0), run_of(4, 1622.0), open_run(RunPurpose.VALIDATION, 5))
    other = trial_of(5, SAMPLER, run_of(3, 1500.0))
    assert paired_trials(comparing(), [baseline, candidate, other]) == (
        "pairs: trial 7, the fastest candidate so far, against the baseline, trial 0 (the fastest documented default)"
    )
    users = baseline.model_copy(update={"origin": TrialOrigin.BASELINE, "runs": baseline.runs[1:]})
    alone = candidate.model_copy(update={"runs": candidate.runs[1:]})
    assert paired_trials(comparing(), [users, alone]) == "pairs: trial 7 against the baseline, trial 0"
    assert paired_trials(comparing(), [users]) == ""


def test_a_terminal_names_the_two_trials_once_before_their_first_pair() -> None:
    baseline = trial_of(0, DEFAULT, run_of(4, 880.0), run_of(5, 944.0), run_of(6, 950.0))
    candidate = trial_of(7, SAMPLER, run_of(4, 1622.0), run_of(5, 1630.0), open_run(RunPurpose.VALIDATION, 6))
    lines: list[str] = []
    view = ComparisonLines(lines.append)
    for _ in range(2):
        view.write_pairs(comparing(), [baseline, candidate])
    assert [line.partition(":")[0] for line in lines] == ["pairs", "pair 1 of at most 24", "pair 2 of at most 24"]
