"""The next step, the recommendation's box and the request's notes say what is true of this answer, and offer what works."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shardtune.api_schemas.recommendations.best import EarlierVerdict
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.budget import MOST_TRIALS, Budget
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, FinalComparison, Speedup, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.studies.verdicts import BusyMachine, OpenVerdict
from shardtune.api_schemas.trials.trial import Rejection
from shardtune.db.queries.offered_hardware import OfferedMachine
from shardtune.service.pages.views import freshness, words
from shardtune.service.pages.views.best import StudyLine
from shardtune.service.pages.views.freshness import StudyFreshness
from shardtune.service.pages.views.home.target_card import target_card
from shardtune.service.pages.views.purpose import Purpose
from shardtune.service.pages.views.recommendation import LatestRetune, Recommended
from shardtune.service.pages.views.study_sections.failures import discarded_text, lacks_host_memory, least_needed_gib
from shardtune.service.pages.views.study_sections.next_step import NextStep, next_step
from shardtune.service.pages.views.study_sections.no_answer import no_answer
from shardtune.service.pages.views.study_sections.recommendation_box import recommendation_box
from shardtune.service.pages.views.study_sections.request_notes import request_notes
from shardtune.service.wording.more_pairs import more_pairs
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.values.synthetic_studies import contender_of, study_of

OWN = contender_of(TrialConfig(strategy=DdpConfig()))
FASTER = contender_of(TrialConfig(strategy=ZeroConfig(stage=2))).model_copy(update={"trial_number": 3})
FRESH, STALE = StudyFreshness("fresh", "same"), StudyFreshness("stale", "changed", ("torch",), "torch 2.12 to 2.13")
START = datetime(2026, 1, 1, tzinfo=UTC)
PAIRS = FinalComparison(candidates=(3,), pairs=5, runs=10, gpu_seconds=100)
MORE = OpenVerdict(pairs=5, won_pairs=4, more_pairs=7)
SPEEDUP = Speedup(value=1.05, ci95=(0.97, 1.1), pairs=5)
BUSY = BusyMachine(rests_on="pairs", runs=10, disturbed_runs=8, uneven_pairs=0, missing_runs=6)


def result(verdict: Verdict, **changes: Any) -> StudyResult:
    values = {"best": OWN, "baseline": OWN, "speedup": SPEEDUP, "verdict": verdict, "final_comparison": PAIRS}
    return StudyResult.model_validate(values | changes)


KEPT = result(Verdict.NOT_FASTER, candidate=FASTER)
ALONE = result(Verdict.UNDECIDED, speedup=None, final_comparison=None)
UNDECIDED = result(Verdict.UNDECIDED, candidate=FASTER, undecided=MORE)
TOO_BUSY = result(Verdict.TOO_BUSY, candidate=FASTER, too_busy=BUSY)
REPLACED = result(Verdict.NOT_FASTER, replaced_baseline="out of memory")


def answered(answer: StudyResult, budget: Budget | None = None, own_code: bool = False, **changes: Any) -> Study:
    study = study_of()
    model = study.spec.model.model_copy(update={"script": "train.py"}) if own_code else study.spec.model
    baseline = {"zero_optimization": {"stage": 0}}
    spec = study.spec.model_copy(update={"baseline": baseline, "budget": budget or Budget(), "model": model})
    return study.model_copy(update={"result": answer, "spec": spec} | changes)


def recommended(answer: StudyResult, state: str = "recommended", **changes: Any) -> Recommended:
    values = {
        "recommendation_id": "rec-1", "target_key": "key", "state": state, "tone": "good", "result": answer,
        "renewed": None, "renewed_at": None, "again": None, "is_superseded": False, "is_too_busy": False,
        "is_pinned": False, "newer": None, "recommended_study": None, "stale_fields": (), "actions": (), "decisions": (),
    }  # fmt: skip
    return Recommended(**values | changes)


def step_of(
    study: Study, shown: Recommended | None = None, fresh: StudyFreshness = FRESH, hours: float = 0
) -> NextStep:
    step = next_step(study, shown, fresh, study.created_at + timedelta(hours=hours))
    assert step is not None
    return step


def test_an_answer_with_nothing_to_compare_is_no_open_verdict() -> None:
    step = step_of(answered(ALONE))
    assert "Train on as you do today" in step.text and "quiet" not in step.text and "pair" not in step.label
    sentence = recommendation_box(recommended(ALONE), OWN).sentence
    assert sentence.startswith("No other configuration was compared") and "paired runs" not in sentence


def test_a_replaced_baseline_is_not_called_the_users_own() -> None:
    study = answered(REPLACED)
    step = step_of(study)
    assert step.text.startswith("Your baseline could not be compared here (") and step.label == "Export"
    assert "stood in for it. Train with it" in step.text
    assert "as you do today" not in step.text
    (note,) = request_notes(study)
    assert "Your baseline could not be compared here (" in note and "trial 0" not in note
    assert "It is trial 0: DDP" in request_notes(answered(KEPT))[0]


def test_a_study_in_which_nothing_fits_is_changed_and_not_run_again() -> None:
    study = study_of().model_copy(update={"state": StudyState.FAILED, "reason_code": StudyReasonCode.NOTHING_FEASIBLE})
    step = step_of(study)
    assert (step.label, step.action) == ("Change the study", "")
    assert step.href.startswith("/new?") and f"sequence_length={study.spec.workload.sequence_length}" in step.href
    failed = study.model_copy(update={"reason_code": StudyReasonCode.INTERNAL_ERROR})
    assert step_of(failed).label == "Run again"


def test_where_everything_was_rejected_the_page_says_how_much_memory_is_needed() -> None:
    failed = study_of().model_copy(
        update={
            "state": StudyState.FAILED,
            "reason_code": StudyReasonCode.NOTHING_FEASIBLE,
            "reason": "no configuration is feasible",
            "rejected": 36,
        }
    )
    assert no_answer(failed, [], 3.8, 5.2).sentence.endswith("a rank may use (3.80 GiB; the smallest needs 5.20 GiB).")
    in_one_unit = "a rank may use (90.1 MiB; the smallest needs 133.1 MiB)."
    assert no_answer(failed, [], 0.088, 0.13).sentence.endswith(in_one_unit)


def test_host_memory_that_offloading_lacks_is_no_memory_that_a_rank_needs() -> None:
    on_rank = Rejection(config=OWN.config, needed_gib=90, available_gib=75.2, reason="a rank")
    on_host = Rejection(config=FASTER.config, needed_gib=70, available_gib=64, reason="a host")
    assert least_needed_gib([], 75.2) is None and least_needed_gib([on_rank], 75.2) == 90
    assert least_needed_gib([on_rank, on_host], 75.2) is None, "it needs less of a rank than 90 GiB"
    assert lacks_host_memory([on_rank, on_host], 75.2) and not lacks_host_memory([on_rank], 75.2)
    code, reason = StudyReasonCode.NOTHING_FEASIBLE, "no configuration is feasible"
    failed = {"state": StudyState.FAILED, "reason_code": code, "reason": reason, "rejected": 2}
    shown = no_answer(study_of().model_copy(update=failed), [], 75.2, None, lacks_host_memory=True)
    assert shown.sentence.endswith("needs more memory than is available (a rank may use 75.2 GiB).")


@pytest.mark.parametrize(
    ("kinds", "sentence", "is_folded"),
    [
        (
            ["oom", "over_limit"],
            "No answer: every configuration considered needs more memory than is available (a rank may use 3.80 GiB).",
            True,
        ),
        (
            ["over_limit"],
            "No answer: every configuration considered needs more memory than a rank may use (3.80 GiB).",
            True,
        ),
        (["oom", "numerics"], "No answer: no configuration can be trained here.", False),
    ],
)
def test_a_study_in_which_nothing_fits_says_so_in_one_sentence(
    kinds: list[str], sentence: str, is_folded: bool
) -> None:
    reason = "no configuration is feasible: 8 ended as oom; use larger GPUs (ZeRO-2 needs 5 GiB)"
    code = StudyReasonCode.NOTHING_FEASIBLE
    failed = study_of().model_copy(update={"state": StudyState.FAILED, "reason_code": code, "reason": reason})
    shown = no_answer(failed, kinds, 3.8)
    assert (shown.sentence, shown.is_folded) == (sentence, is_folded)
    assert shown.details == f"N{reason[1:]}", "no figure is lost"
    assert no_answer(failed, kinds, 3.8, 5.2).sentence == sentence, "a trial showed that the prediction is too low"
    other = failed.model_copy(update={"reason_code": StudyReasonCode.INTERNAL_ERROR, "reason_details": "a line"})
    assert (no_answer(other, kinds, 3.8).sentence, no_answer(other, kinds, 3.8).details) == ("", "A line")


@pytest.mark.parametrize("state", ["retired", "rejected", "recommended"])
def test_an_answer_that_another_study_replaced_leads_to_that_study(state: str) -> None:
    shown = recommended(KEPT, state, recommended_study="study-2", is_superseded=state == "recommended")
    step = step_of(answered(KEPT), shown)
    assert (step.text, step.href) == ("Training jobs get the answer of another study.", "/studies/study-2")


def test_a_rejected_answer_without_another_is_not_to_be_trained_with() -> None:
    answer = result(Verdict.CONFIRMED, best=FASTER)
    step = step_of(answered(answer), recommended(answer, "rejected"))
    assert "Train with it" not in step.text and step.action == "/studies/study-1/rerun"


MEASURING = LatestRetune("being measured again", "", False, START, "study-again")


def test_an_answer_that_is_being_measured_again_is_waited_for() -> None:
    shown = recommended(TOO_BUSY, again=MEASURING)
    step = step_of(answered(TOO_BUSY), shown, STALE)
    assert step.text.startswith("Wait") and step.href == "/studies/study-again" and not step.action
    over = recommended(KEPT, again=replace(MEASURING, is_over=True))
    assert not step_of(answered(KEPT), over).text.startswith("Wait")


def test_an_open_verdict_is_not_approved_first() -> None:
    step = step_of(answered(TOO_BUSY), recommended(TOO_BUSY, "proposed"))
    assert step.label != "Approve" and "quiet" in step.text
    assert step.command == "shardtune studies extend study-1 --add-pairs 3 --wait-for-quiet-s 1800"
    box = recommendation_box(recommended(TOO_BUSY, "proposed"), FASTER)
    assert box.is_open and "although its verdict is open" in box.sentence
    assert step_of(answered(KEPT), recommended(KEPT, "proposed")).label == "Approve"


def test_a_too_busy_answer_names_the_candidate_and_what_follows_the_wait() -> None:
    """`The faster of candidate and baseline` left open which, and nothing said what happens after 30 minutes."""
    busy = result(Verdict.TOO_BUSY, best=FASTER, too_busy=BUSY)
    _, sentence = words.verdict(answered(busy), Purpose("search", ""))
    assert "For now, the candidate is the answer, as it was faster in the pairs." in sentence
    assert "So far the candidate reached 1.05" in sentence
    assert "Keep the baseline" in words.verdict(answered(TOO_BUSY), Purpose("search", ""))[1]
    assert step_of(answered(busy)).text.endswith("until the machine is quiet; then they run anyway.")


@pytest.mark.parametrize("answer", [KEPT, UNDECIDED, TOO_BUSY], ids=["kept", "undecided", "too busy"])
def test_a_cancelled_study_is_run_again_and_not_extended(answer: StudyResult) -> None:
    assert step_of(answered(answer)).action.endswith("/extend")
    step = step_of(answered(answer, state=StudyState.CANCELLED))
    assert step.action == "/studies/study-1/rerun" and not step.command
    assert more_pairs(answered(answer, state=StudyState.CANCELLED), answer) is None, "nor does `tune` advise more pairs"


@pytest.mark.parametrize(
    ("budget", "changes", "hours"),
    [
        (Budget(), {"reason_code": StudyReasonCode.ALL_TRIED}, 0),
        (Budget(max_gpu_seconds=100), {"gpu_seconds": 101}, 0),
        # The service rejects trials that would leave too little for their comparison, as 15 runs of 10 GPU-seconds.
        (Budget(max_gpu_seconds=240), {"gpu_seconds": 99}, 0),
        (Budget(max_wall_seconds=600), {}, 1),
        (Budget(max_trials=MOST_TRIALS), {}, 0),
    ],
    ids=["exhausted", "GPU-seconds", "no comparison", "wall seconds", "most trials"],
)
def test_trials_are_not_offered_where_the_search_would_not_go_on(budget: Budget, changes: Any, hours: float) -> None:
    study = answered(KEPT, budget, **changes)
    step = step_of(study, hours=hours)
    assert "Train on as you do today" in step.text and not step.action and not step.command
    raised = answered(KEPT, Budget(max_gpu_seconds=250, max_wall_seconds=600), gpu_seconds=99)
    assert step_of(raised).fields == (("add_trials", "10"),)


@pytest.mark.parametrize("number", [1, 3])
def test_discarded_runs_of_any_cause_are_not_blamed_on_other_programs(number: int) -> None:
    text = discarded_text(number)
    assert "program" not in text and text.endswith("page says which" if number == 1 else "pages say which")
    assert words.FAILURES["disturbed"] == "disturbed"


def test_pairs_that_whole_steps_contradict_are_run_again_with_whole_steps() -> None:
    off = OpenVerdict(pairs=7, won_pairs=7, more_pairs=None, is_extension_off=True)
    step = step_of(answered(result(Verdict.UNDECIDED, candidate=FASTER, undecided=off)))
    assert step.fields == (("whole_steps", "true"),) and "quiet" not in step.text
    assert "budget.short_steps false" in step.text and step.action.endswith("/rerun")


def test_pairs_that_vary_on_a_quiet_machine_do_not_wait_for_quiet() -> None:
    quiet = OpenVerdict(pairs=24, won_pairs=15, more_pairs=None)
    step = step_of(answered(result(Verdict.UNDECIDED, candidate=FASTER, undecided=quiet)))
    assert step.fields == () and step.text.startswith("Train on as you do today") and step.action.endswith("/rerun")
    busy = quiet.model_copy(update={"disturbed_counted_runs": 2})
    waits = step_of(answered(result(Verdict.UNDECIDED, candidate=FASTER, undecided=busy)))
    assert dict(waits.fields) == {"wait_minutes": "30"}


def test_who_named_no_baseline_is_not_told_to_train_on_with_it() -> None:
    quiet = OpenVerdict(pairs=24, won_pairs=15, more_pairs=None)
    kept, faster = (
        result(Verdict.UNDECIDED, candidate=FASTER, undecided=quiet),
        result(Verdict.UNDECIDED, best=FASTER, undecided=quiet),
    )
    of_default = answered(kept)
    of_default = of_default.model_copy(update={"spec": of_default.spec.model_copy(update={"baseline": None})})
    replaced = answered(kept.model_copy(update={"replaced_baseline": "out of memory"}))
    for study, advice in (
        (of_default, "Train with the baseline:"),
        (replaced, "Train with the baseline:"),
        (answered(faster), "Either will do:"),
    ):
        assert step_of(study).text.startswith(advice)


def test_an_open_verdict_on_changed_software_is_measured_again_and_still_waits_for_quiet() -> None:
    undecided, busy = step_of(answered(UNDECIDED), fresh=STALE), step_of(answered(TOO_BUSY), fresh=STALE)
    assert undecided.action == busy.action == "/studies/study-1/rerun" and "torch 2.12 to 2.13" in busy.text
    assert busy.fields == (("wait_minutes", "30"),) and undecided.fields == ()


def test_a_stale_undecided_answer_has_low_confidence_and_jobs_still_get_it() -> None:
    assert "medium confidence" in recommendation_box(recommended(UNDECIDED), OWN).sentence
    box = recommendation_box(recommended(UNDECIDED, stale_fields=("torch",)), OWN)
    assert "low confidence" in box.badge and "get no answer" not in box.sentence
    assert "get no answer" in recommendation_box(recommended(TOO_BUSY), OWN).sentence


@pytest.mark.parametrize(
    ("best", "speedup", "badge"),
    [(OWN, SPEEDUP, "baseline kept"), (FASTER, SPEEDUP, "faster of two, not confirmed"), (FASTER, None, "faster of two, not confirmed")],
)  # fmt: skip
def test_a_card_says_that_the_baseline_is_kept_only_where_it_is(best: Contender, speedup: Any, badge: str) -> None:
    study = answered(result(Verdict.NOT_FASTER, best=best, speedup=speedup))
    line = StudyLine(study, "2 CPU", "batch", best, 0.5, 4.0, FRESH, None)
    assert target_card(line, None, "EUR", study.created_at).gain.badge == badge


@pytest.mark.parametrize("verdict", [Verdict.UNDECIDED, Verdict.TOO_BUSY, Verdict.NOT_FASTER])
def test_a_card_of_a_renewed_answer_does_not_guess_that_the_baseline_is_kept(verdict: Verdict) -> None:
    answer = result(Verdict.NOT_FASTER, best=FASTER)
    study = answered(answer)
    first = EarlierVerdict(recommendation_id="rec-0", study_id="study-0", verdict=verdict, speedup=None)
    line = StudyLine(study, "2 CPU", "batch", FASTER, 0.5, 4.0, FRESH, recommended(answer, renewed=first))
    gain = target_card(line, None, "EUR", study.created_at).gain
    assert (gain.badge, gain.study_id) == ("not confirmed", "study-0")


@pytest.mark.parametrize("answer", [UNDECIDED, TOO_BUSY], ids=["undecided", "too busy"])
def test_a_card_never_shows_the_candidates_gain_as_that_of_the_kept_baseline(answer: StudyResult) -> None:
    study = answered(answer)
    gain = target_card(
        StudyLine(study, "2 CPU", "batch", OWN, 0.5, 4.0, FRESH, None), None, "EUR", study.created_at
    ).gain
    assert not gain.value and "the baseline is kept for now" in gain.note


def test_a_card_promises_more_pairs_only_where_they_may_decide() -> None:
    vary = result(Verdict.UNDECIDED, candidate=FASTER, undecided=MORE.model_copy(update={"more_pairs": None}))
    cards = [
        target_card(StudyLine(study, "2 CPU", "batch", OWN, 0.5, 4.0, FRESH, None), None, "EUR", study.created_at)
        for study in (answered(UNDECIDED), answered(vary))
    ]
    assert [card.gain.explained for card in cards] == ["More pairs may decide it.", "More pairs would not decide it."]


def test_only_what_training_jobs_get_is_titled_recommended() -> None:
    study = answered(result(Verdict.UNDECIDED, best=FASTER, undecided=MORE))
    assert words.best_title(study, is_recommended=True) == "Recommended for now"
    assert words.best_title(study, is_recommended=False) == "Faster so far"


def test_own_code_is_told_where_its_settings_are() -> None:
    answer = result(Verdict.CONFIRMED, best=FASTER)
    assert "the export holds the files for your launcher" in step_of(answered(answer)).text
    own = step_of(answered(answer, own_code=True)).text
    assert "config.json holds the settings" in own and "launcher" not in own


def test_no_pairs_are_offered_for_an_answer_whose_comparison_a_failed_extension_has_left() -> None:
    left = answered(UNDECIDED, state=StudyState.FAILED, final_comparison=1)
    step = step_of(left.model_copy(update={"reason": "the search failed with OSError: disk"}))
    assert "Remove the cause of the failure (the search failed with OSError: disk)" in step.text
    assert (step.action, step.fields) == ("/studies/study-1/extend", (("add_trials", "10"),))
    used_up = left.model_copy(update={"spec": left.spec.model_copy(update={"budget": Budget(max_wall_seconds=1)})})
    assert step_of(used_up, hours=2).action.endswith("/rerun")
    in_it = answered(UNDECIDED, state=StudyState.FAILED, final_comparison=0)
    assert step_of(in_it).action.endswith("/extend")


@pytest.mark.parametrize("best", [OWN, FASTER])
def test_the_first_page_and_the_studys_page_say_one_sentence_of_a_gain_without_a_verdict(best: Contender) -> None:
    """The card said that the gain was not known, which the study's page gave with its interval."""
    study = answered(TOO_BUSY.model_copy(update={"best": best}))
    line = StudyLine(study, "2 CPU", "batch", best, 0.5, 4.0, FRESH, None)
    note, _, kept = target_card(line, None, "EUR", study.created_at).gain.note.partition("; ")
    assert (
        note == "So far the candidate reached 1.05× the baseline's speed (95 % interval 0.97 to 1.10, which includes 1)"
    )
    assert words.verdict(study, Purpose("search", "search"))[1].endswith(f" {note}.")
    assert bool(kept) == (best is OWN)


def test_a_card_without_pairs_says_that_the_gain_is_not_known() -> None:
    study = answered(TOO_BUSY.model_copy(update={"speedup": None}))
    line = StudyLine(study, "2 CPU", "batch", OWN, 0.5, 4.0, FRESH, None)
    assert target_card(line, None, "EUR", study.created_at).gain.note == "not known; the baseline is kept for now"


def test_an_answer_is_fresh_by_a_worker_that_need_not_be_live() -> None:
    """`a registered worker still has the hardware` stood on the page that said "No live worker"."""
    study = study_of().model_copy(update={"fingerprint": FINGERPRINT})
    ended = OfferedMachine("gone", None, datetime(2026, 1, 1, tzinfo=UTC), study.cluster, FINGERPRINT)
    fresh = freshness.of(study, [ended])
    assert (fresh.word, "live or not" in fresh.why) == ("fresh", True)


def test_a_study_that_failed_for_its_limit_is_told_to_raise_it_and_not_to_run_again() -> None:
    limited = {"state": StudyState.FAILED, "result": None, "reason_code": StudyReasonCode.NO_AGREEMENT}
    study = answered(KEPT, Budget(max_gpu_seconds=70, max_trials=6), gpu_seconds=128.4, **limited)
    step = step_of(study)
    assert step.command == "shardtune studies extend study-1 --add-gpu-seconds 129" and not step.action
    late = answered(KEPT, Budget(max_wall_seconds=600), **limited)
    assert step_of(late, hours=1).command == "shardtune studies extend study-1 --add-wall-seconds 600"
    early = late.model_copy(update={"finished_at": late.created_at + timedelta(seconds=60)})
    assert step_of(early, hours=1).action == "/studies/study-1/rerun"
    other = answered(KEPT, Budget(max_gpu_seconds=700), gpu_seconds=128.4, **limited)
    assert step_of(other).action == "/studies/study-1/rerun"
