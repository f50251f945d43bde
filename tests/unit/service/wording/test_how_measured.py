"""How an answer was measured: speeds of the middle pair divide to the gain, and short reasons hold no counts of runs."""

import re
from typing import Any

import pytest

from shardtune.api_schemas.machines.conditions import ProgramLoad
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_result import FinalComparison, Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import BusyMachine, OpenVerdict
from shardtune.service.pages import figures
from shardtune.service.wording import study_words
from shardtune.service.wording.answers.disturbances import busy_cause
from shardtune.service.wording.answers.how_measured import middle_pair, speed_reasons
from shardtune.service.wording.answers.trust_line import part_of
from shardtune.service.wording.result_runs import ResultRuns
from shardtune.service.wording.trust import trust
from tests.support.service.simulated_worker import measurement
from tests.support.values.synthetic_studies import contender_of, study_of

BASELINE = contender_of(TrialConfig(strategy=DdpConfig()))
FASTER = contender_of(TrialConfig(strategy=ZeroConfig(stage=2))).model_copy(update={"trial_number": 3})
COUNTS = re.compile(r"\d+ (of the \d+ )?(more |paired |validation |search )?(runs|pairs)\b")
# Speeds of candidate and baseline in each block; the machine's load changes from block to block.
BLOCKS = ((2485.0, 1096.0), (2200.0, 1052.0), (2247.0, 828.0), (2315.0, 1267.0), (2314.0, 1161.0))


def result(ratios: tuple[float, ...], verdict: Verdict = Verdict.CONFIRMED, **changes: Any) -> StudyResult:
    value = sorted(ratios)[len(ratios) // 2]
    comparison = FinalComparison(candidates=(3,), pairs=len(ratios), runs=12, gpu_seconds=100, ratios=ratios)
    values = {
        "best": FASTER, "baseline": BASELINE, "verdict": verdict, "final_comparison": comparison,
        "speedup": Speedup(value=value, ci95=(1.2, 3.9), pairs=len(ratios), ratios=ratios),
    }  # fmt: skip
    return StudyResult.model_validate(values | changes)


def runs_of(*blocks: tuple[float, float]) -> ResultRuns:
    return ResultRuns(block_speeds={number: {3: pair[0], 0: pair[1]} for number, pair in enumerate(blocks)})


RATIOS = tuple(faster / slower for faster, slower in BLOCKS)


def test_the_middle_pair_has_the_speeds_that_divide_to_the_gain() -> None:
    # A block that does not count, because its two runs had unequal load.
    pair = middle_pair(result(RATIOS), runs_of((3000.0, 700.0), *BLOCKS))
    assert pair is not None and (pair.candidate, pair.baseline) == pytest.approx((2200.0, 1052.0))
    lines = [reason.text for reason in speed_reasons(result(RATIOS), runs_of(*BLOCKS))]
    assert lines[0] == "in the middle pair: 2,200 against the baseline's 1,052 tokens/s/GPU, which is 2.09×"
    assert "need not divide to the gain" in lines[1] and "in 5 runs" in lines[1]


def test_an_even_number_of_pairs_has_two_in_the_middle_that_divide_to_the_gain_together() -> None:
    gain = (RATIOS[0] * RATIOS[1]) ** 0.5
    four = result(RATIOS[:4])
    assert four.speedup is not None
    four = four.model_copy(update={"speedup": four.speedup.model_copy(update={"value": gain})})
    pair = middle_pair(four, runs_of(*BLOCKS[:4]))
    assert pair is not None and pair.ratio == pytest.approx(gain)
    assert speed_reasons(four, runs_of(*BLOCKS[:4]))[0].text.startswith("in the two middle pairs, on average: ")


def test_speeds_of_a_few_tokens_keep_the_digits_that_divide_to_the_gain() -> None:
    slow = tuple((faster / 1000, slower / 1000) for faster, slower in BLOCKS)
    line = speed_reasons(result(RATIOS), runs_of(*slow))[0].text
    assert line == "in the middle pair: 2.20 against the baseline's 1.05 tokens/s/GPU, which is 2.09×"


@pytest.mark.parametrize(
    ("speed", "text"),
    [(3310.4, "3,310"), (99.94, "99.9"), (48, "48.0"), (4.25, "4.25"), (0.02314, "0.0231"), (0, "0")],
)
def test_a_speed_has_the_digits_that_tell_it_from_others_on_the_terminal_and_the_page(speed: float, text: str) -> None:
    assert (study_words.rate(speed), figures.rate(speed)) == (text, text)


def test_no_pair_is_named_whose_runs_are_not_at_hand() -> None:
    assert middle_pair(result(RATIOS), ResultRuns()) is None
    assert middle_pair(result(RATIOS), runs_of(*BLOCKS[:3])) is None
    (line,) = speed_reasons(result(RATIOS), ResultRuns())
    assert line.text.startswith("medians of all runs")


OPEN = OpenVerdict(pairs=5, won_pairs=4, more_pairs=7, disturbed_counted_runs=3)
BUSY = BusyMachine(
    rests_on="pairs", runs=10, disturbed_runs=8, uneven_pairs=2, missing_runs=6, foreign_cpu_cores=1.3,
    programs=(ProgramLoad(name="python", cores=1.1),),
)  # fmt: skip
DISTURBED = FinalComparison(
    candidates=(3,),
    pairs=5,
    disturbed_pairs=3,
    disturbed_counted_runs=4,
    uneven_pairs=2,
    runs=14,
    gpu_seconds=1,
    ratios=RATIOS,
)


@pytest.mark.parametrize(
    "answer",
    [
        result(RATIOS),
        result((1.5, 1.51, 1.52)),
        result(RATIOS, Verdict.UNDECIDED, undecided=OPEN),
        result(RATIOS, Verdict.UNDECIDED, undecided=OPEN.model_copy(update={"more_pairs": None})),
        result(RATIOS, Verdict.UNDECIDED, speedup=None, undecided=OPEN.model_copy(update={"pairs": 0})),
        result(RATIOS, Verdict.TOO_BUSY, too_busy=BUSY),
        result(RATIOS, later_too_busy=BUSY),
        result(RATIOS, later_undecided=OPEN),
        result(RATIOS, final_comparison=DISTURBED, search_runs=9, disturbed_search_runs=4),
        result(RATIOS, Verdict.NOT_FASTER, speedup=None, final_comparison=None),
    ],
    ids=["wide", "quiet", "undecided", "hopeless", "no pair", "too busy", "kept, busy", "kept", "disturbed", "alone"],
)
def test_short_reasons_hold_no_counts_of_runs_and_the_full_ones_keep_them(answer: StudyResult) -> None:
    complete = (FASTER.config, BASELINE.config)
    reasons = trust(study_of().model_copy(update={"result": answer}), ResultRuns(complete))
    shown = [reason.shown for reason in reasons if reason.tone != "quiet"]
    assert any(shown) and not [text for text in shown if COUNTS.search(text)]
    assert len(set(filter(None, shown))) == len(list(filter(None, shown))), "no reason stands there twice"
    assert any(COUNTS.search(reason.text) for reason in reasons)


@pytest.mark.parametrize(
    "open_verdict",
    [{"verdict": Verdict.UNDECIDED, "undecided": OPEN}, {"verdict": Verdict.TOO_BUSY, "too_busy": BUSY}],
)
def test_pairs_are_not_said_to_agree_beside_a_verdict_that_they_leave_open(open_verdict: dict[str, Any]) -> None:
    def of_pairs(**changes: Any) -> tuple[str, str]:
        answer = result((1.0, 1.01, 0.99, 1.0, 1.01), **changes)
        reasons = trust(study_of().model_copy(update={"result": answer}), ResultRuns())
        return next((reason.tone, reason.shown) for reason in reasons if reason.text.startswith("5 paired runs"))

    assert of_pairs(**open_verdict) == ("warn", ""), "the reason for the open verdict says it"
    assert of_pairs(verdict=Verdict.NOT_FASTER)[1].endswith("; the pairs agree, from 0.99× to 1.01×")


CAUSE = "other programs kept 1.4 of 2 cores busy"


def story(answer: StudyResult, stored: ResultRuns) -> list[str]:
    return [reason.text for reason in trust(study_of().model_copy(update={"result": answer}), stored)]


def test_trials_that_were_also_run_again_are_candidates_or_documented_defaults() -> None:
    comparison = FinalComparison(candidates=(3, 2, 6), pairs=5, runs=20, gpu_seconds=1, ratios=RATIOS)
    runs = {number: (measurement(1.0),) for number in (0, 1, 2, 3, 6)}
    answer = result(RATIOS, final_comparison=comparison)
    chosen = "trial 3 went into the pairs"
    named = f"also run again: trials 2, 6 (candidates) and trial 1 (a documented default); {chosen}"
    assert f"{named}, as the fastest candidate by then" in story(answer, ResultRuns(validation_runs=runs))
    far_behind = answer.model_copy(update={"speedup": None})
    assert named in story(far_behind, ResultRuns(validation_runs=runs)), "none of them may be fast"
    del runs[2], runs[6]
    assert f"also run again: trial 1 (a documented default); {chosen}" in story(answer, ResultRuns((), runs))


def test_candidates_are_named_whose_runs_do_not_show_that_the_paired_one_is_faster() -> None:
    """The verdict compares one candidate with the baseline, and readers took the best for proven against all."""
    comparison = FinalComparison(candidates=(3, 2, 6, 5), pairs=5, runs=20, gpu_seconds=1, ratios=RATIOS)
    speeds = {3: (100.0, 130.0), 2: (105.0,), 6: (90.0, 99.0), 5: (95.0, 140.0), 0: (110.0,)}
    runs = {number: tuple(map(measurement, of_trial)) for number, of_trial in speeds.items()}
    answer = result(RATIOS, final_comparison=comparison)
    named = "not distinguishable from trial 3: trials 2, 5 (the speeds of their validation runs overlap)"
    assert named in story(answer, ResultRuns(validation_runs=runs))
    del runs[2], runs[5]
    assert not [text for text in story(answer, ResultRuns(validation_runs=runs)) if "distinguishable" in text]


def test_disturbed_runs_that_count_are_told_of_both_sides() -> None:
    quiet, busy = measurement(1.0), measurement(1.0).model_copy(update={"disturbed": CAUSE})
    stored = ResultRuns((), {3: (busy, quiet, busy), 0: (busy, quiet)})
    texts = [text for text in story(result(RATIOS), stored) if "although disturbed" in text]
    why = f"although disturbed (the last: {CAUSE})"
    assert texts == [
        f"2 of the 3 validation runs of trial 3 count {why}",
        f"1 of the 2 validation runs of the baseline, trial 0, counts {why}",
    ]


def test_disturbed_runs_of_pairs_that_were_left_out_are_not_said_to_count() -> None:
    quiet, busy = measurement(1.0), measurement(1.0).model_copy(update={"disturbed": CAUSE, "cores_left": 0.6})
    stored = ResultRuns((), {3: (busy, quiet, quiet), 0: (quiet, quiet, quiet)})
    left_out = DISTURBED.model_copy(update={"disturbed_pairs": 0, "disturbed_counted_runs": 0})
    answer = result(RATIOS, final_comparison=left_out)
    reasons = trust(study_of().model_copy(update={"result": answer}), stored)
    (reason,) = [reason for reason in reasons if CAUSE in reason.text]
    assert reason.text == f"1 of the 3 validation runs of trial 3 was disturbed (the last: {CAUSE})"
    assert reason.shown == "other programs disturbed some of the validation runs, none in the pairs that count"
    texts = story(answer, stored)
    assert "2 more pairs were left out, because other programs left the two runs unequal numbers of cores" in texts


SPREAD = "its timed windows lie apart by ±30% of the step time"


@pytest.mark.parametrize("uneven", [0, 2])
def test_runs_that_an_unknown_cause_disturbed_are_not_blamed_on_other_programs(uneven: int) -> None:
    """A worker in a container sees no other program; then only the spread of a run shows a disturbance."""
    quiet, apart = measurement(1.0), measurement(1.0).model_copy(update={"disturbed": SPREAD})
    left_out = DISTURBED.model_copy(update={"disturbed_pairs": 0, "disturbed_counted_runs": 0, "uneven_pairs": uneven})
    answer = result(RATIOS, final_comparison=left_out)
    stored = ResultRuns((), {3: (apart, quiet, quiet), 0: (quiet, apart, quiet)})
    reasons = trust(study_of().model_copy(update={"result": answer}), stored)
    assert not [reason for reason in reasons if "other programs" in reason.text + reason.shown]
    assert "some of the validation runs were disturbed, none in the pairs that count" in [r.shown for r in reasons]
    why = "2 more pairs were left out, because their two runs may have had unequal load"
    assert (why in [reason.text for reason in reasons]) == bool(uneven)


@pytest.mark.parametrize(("number", "verb"), [(1, "was"), (8, "were")])
def test_a_machine_on_which_no_program_was_seen_is_busy_with_what_is_not_known(number: int, verb: str) -> None:
    unseen = BUSY.model_copy(update={"foreign_cpu_cores": None, "programs": (), "disturbed_runs": number})
    assert busy_cause(unseen) == "the runs that decide were disturbed; by what is not known"
    assert unseen.describe() == (
        f"the machine was too busy to answer: {number} of 10 runs in pairs (left-out pairs included) {verb} disturbed, as their timed windows show; by "
        "what is not known; an answer takes 3 more pairs (6 runs) on a quiet machine"
    )


def test_a_search_with_one_configuration_is_in_the_singular() -> None:
    texts = story(result(RATIOS), ResultRuns((BASELINE.config,)))
    assert "a short search: 1 configuration was measured in full; a larger budget may find a faster one" in texts


def test_a_busy_program_does_not_read_like_a_version() -> None:
    assert busy_cause(BUSY) == (
        "other programs disturbed the runs that decide and kept 1.3 CPU cores busy (python on 1.1 cores, "
        "ended or hidden programs on 0.2 cores)"
    )


@pytest.mark.parametrize(("number", "words"), [(1, "some of"), (5, "some of"), (6, "most of"), (10, "all of")])
def test_a_part_is_said_in_words(number: int, words: str) -> None:
    assert part_of(number, 10) == words


@pytest.mark.parametrize(
    ("pairs", "cause"),
    [
        (2, "won 1 of 2 pairs; budget.max_gpu_seconds ended it early"),
        (0, "was completed; budget.max_gpu_seconds ended it"),
    ],
)
def test_a_kept_answer_names_the_limit_that_ended_the_newest_comparison(pairs: int, cause: str) -> None:
    newest = OPEN.model_copy(update={"pairs": pairs, "won_pairs": 1, "ended_by": StudyReasonCode.GPU_SECONDS_USED})
    study = study_of().model_copy(update={"result": result(RATIOS, later_undecided=newest)})
    assert any(cause in reason.text for reason in trust(study, ResultRuns((FASTER.config, BASELINE.config))))
