"""A confirmed answer stays where a later comparison decided nothing, unless whole steps contradict its step times."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.study_result import Contender, FinalComparison, Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import (
    BusyMachine,
    OpenVerdict,
    SustainedOutcome,
    SustainedSpeed,
    WholeStepCheck,
)
from shardtune.tuner.verdict import kept_answer
from shardtune.tuner.verdict.contenders import contender
from tests.support.values.tuner_inputs import complete

DDP, FSDP2 = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2))
TRIALS = [contender(complete(number, FSDP2 if number else DDP, 100 + 10 * number)) for number in range(4)]
OPEN = OpenVerdict(pairs=7, won_pairs=4, more_pairs=5)
OFF = OPEN.model_copy(update={"is_extension_off": True, "more_pairs": None})
BUSY = BusyMachine(rests_on="pairs", runs=10, disturbed_runs=8, uneven_pairs=2, missing_runs=6)


def result(best: int, verdict: Verdict, number: int, baseline: Contender = TRIALS[0], **changes: Any) -> StudyResult:
    """Result of the study's comparison with this number, against the baseline, by default trial 0."""
    compared = FinalComparison(number=number, candidates=(1,), pairs=7, runs=20 * number, gpu_seconds=9.0 * number)
    speedup = Speedup(value=1.3, ci95=(1.2, 1.4), pairs=7)
    return StudyResult(
        best=TRIALS[best],
        baseline=baseline,
        speedup=speedup,
        verdict=verdict,
        final_comparison=compared,
        search_runs=4 * number,
        **changes,
    )


def less_quiet(newest: StudyResult) -> StudyResult:
    """The same result, where other programs disturbed one of its pairs."""
    compared = newest.final_comparison
    assert compared is not None
    return newest.model_copy(update={"final_comparison": compared.model_copy(update={"disturbed_pairs": 1})})


def undecided(candidate: int = 1, details: OpenVerdict = OPEN, **changes: Any) -> StudyResult:
    return result(0, Verdict.UNDECIDED, 3, candidate=TRIALS[candidate], undecided=details, **changes)


def check(trial: int, **changes: Any) -> WholeStepCheck:
    """Whole step of a trial that contradicts its short steps."""
    times: dict[str, Any] = {
        "step_time_s": 1.0,
        "extended_step_time_s": 1.2,
        "extension_error": 0.2,
        "is_confirmed": False,
    }
    return WholeStepCheck(trial_number=trial, accumulations=(2, 4), micro_batches=8, **(times | changes))


CONFIRMED = result(1, Verdict.CONFIRMED, 1)


@pytest.mark.parametrize(
    ("newest", "is_kept"),
    [
        (undecided(), True),
        (result(0, Verdict.TOO_BUSY, 3, too_busy=BUSY), True),
        (result(2, Verdict.CONFIRMED, 3), False),
        (result(0, Verdict.NOT_FASTER, 3, candidate=TRIALS[2]), True),
        (result(0, Verdict.NOT_FASTER, 3, candidate=TRIALS[1]), False),
        (less_quiet(result(0, Verdict.NOT_FASTER, 3, candidate=TRIALS[1])), True),
        (result(0, Verdict.NOT_FASTER, 3, candidate=TRIALS[1], baseline=TRIALS[3]), True),
        (result(0, Verdict.UNDECIDED, 3), False),
        (undecided(2, OFF, whole_steps=(check(2),)), True),
        (undecided(2, OFF, whole_steps=(check(2), check(0))), False),
        (undecided(2, OFF, whole_steps=(check(2), check(0, is_disturbed=True))), True),
        (undecided(1, OFF, whole_steps=(check(1, is_confirmed=True), check(0, is_confirmed=True))), False),
        (undecided(2, OFF, whole_steps=(check(2, is_confirmed=True), check(0, is_confirmed=True))), True),
    ],
    ids=[
        "undecided", "too busy", "confirmed", "not faster elsewhere", "not faster", "not faster in fewer undisturbed pairs",
        "not faster than another baseline", "nothing to compare", "off elsewhere", "off here",
        "disturbed check", "turned here", "turned elsewhere",
    ],
)  # fmt: skip
def test_a_confirmed_answer_stays_where_the_newest_comparison_says_nothing_against_it(
    newest: StudyResult, is_kept: bool
) -> None:
    assert kept_answer.stands(CONFIRMED, newest) is is_kept
    assert not kept_answer.stands(undecided(), newest), "only a confirmed answer stays"


def test_the_kept_answer_states_the_newest_verdict_and_the_cost_of_all_comparisons() -> None:
    kept = kept_answer.kept(CONFIRMED, undecided())
    assert (kept.verdict, kept.newest_verdict, kept.best) == (Verdict.CONFIRMED, Verdict.UNDECIDED, TRIALS[1])
    assert (kept.later_undecided, kept.later_too_busy, kept.undecided) == (OPEN, None, None)
    compared = kept.final_comparison
    assert compared is not None and (compared.number, compared.runs, compared.gpu_seconds) == (1, 60, 27.0)
    assert kept.search_runs == 12
    busy = kept_answer.kept(kept, result(0, Verdict.TOO_BUSY, 5, too_busy=BUSY))
    assert (busy.later_undecided, busy.later_too_busy, busy.newest_verdict) == (None, BUSY, Verdict.TOO_BUSY)
    assert CONFIRMED.newest_verdict is Verdict.CONFIRMED


def test_the_kept_answer_describes_the_comparison_that_found_another_candidate_not_faster() -> None:
    kept = kept_answer.kept(CONFIRMED, result(0, Verdict.NOT_FASTER, 3, candidate=TRIALS[2]))
    later = kept.later_not_faster
    assert (kept.verdict, kept.newest_verdict, kept.best) == (Verdict.CONFIRMED, Verdict.NOT_FASTER, TRIALS[1])
    assert later is not None and (later.trial_number, later.baseline_number) == (2, 0)
    assert (later.pairs, later.undisturbed_pairs, later.ratio, later.decided_at) == (7, 7, 1.3, None)
    assert kept_answer.kept(kept, undecided()).later_not_faster is None


def test_a_replaced_confirmation_stays_named_until_another_is_confirmed() -> None:
    noon = datetime(2026, 11, 2, 12, tzinfo=UTC)
    newest = result(0, Verdict.NOT_FASTER, 3, candidate=TRIALS[1])
    replaced = kept_answer.with_replaced(newest, CONFIRMED, noon)
    before = replaced.confirmed_before
    assert before is not None and (before.trial_number, before.pairs, before.decided_at) == (1, 7, noon)
    assert kept_answer.with_replaced(undecided(), replaced, None).confirmed_before == before
    assert kept_answer.with_replaced(result(2, Verdict.CONFIRMED, 5), replaced, None).confirmed_before is None
    assert kept_answer.with_replaced(newest, undecided(), noon).confirmed_before is None


@pytest.mark.parametrize(
    ("newest", "earlier", "shown"),
    [
        (undecided(), "earlier", "newest"),
        (undecided(), None, None),
        (result(0, Verdict.TOO_BUSY, 3, too_busy=BUSY), "earlier", "earlier"),
    ],
)
def test_an_undecided_extension_renews_the_projection_and_a_busy_one_does_not(
    newest: StudyResult, earlier: str | None, shown: str | None
) -> None:
    confirmed = CONFIRMED.model_copy(update={"projection": earlier})
    kept = kept_answer.kept(confirmed, newest.model_copy(update={"projection": "newest"}))
    assert kept.projection == shown
    assert kept_answer.kept(confirmed, newest).projection == earlier


def test_a_kept_answer_names_no_remedy_that_would_give_it_no_sustained_speed() -> None:
    left_out = SustainedSpeed(
        trial_number=1,
        outcome=SustainedOutcome.LEFT_OUT,
        reason="budget.max_gpu_seconds (60) leaves 0 GPU-seconds",
        remedy="raise it",
        compared_tokens_per_s_per_gpu=110.0,
    )
    kept = kept_answer.kept(CONFIRMED.model_copy(update={"sustained": left_out}), undecided())
    assert kept.sustained == left_out.model_copy(update={"remedy": None})
