"""Summary of a study: the JSON object for programs, and the rows for people."""

import re
from typing import Any

from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study_result import Speedup, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.verdicts import AgainstDefault, OpenVerdict
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.cli import summary
from tests.unit.service.cli.output.shown_studies import CONFIRMED, UNBEATEN, ZERO, rejected, study, trial


def test_the_json_object_has_exactly_the_documented_keys() -> None:
    answer = summary.as_json(study(), CONFIRMED, [], ["best/config.json"])
    assert list(answer) == [
        "study_id",
        "best",
        "baseline",
        "speedup",
        "verdict",
        "undecided",
        "too_busy",
        "against_defaults",
        "trust",
        "final_comparison",
        "whole_steps",
        "search_runs",
        "resume_check",
        "sustained",
        "projection",
        "recipes",
        "trials",
        "exports",
    ]
    assert set(answer["best"]) == {"config", "tokens_per_s_per_gpu", "peak_allocated_gib", "peak_reserved_gib"}
    assert answer["best"].keys() == answer["baseline"].keys()
    assert TrialConfig.model_validate(answer["best"]["config"]) == ZERO
    assert answer["speedup"] == {"value": 1.31, "ci95": [1.27, 1.35]}
    assert answer["final_comparison"] == {
        "number": 1, "candidates": [1, 2, 3, 4], "pairs": 8, "disturbed_pairs": 1, "runs": 22, "gpu_seconds": 190.0,
        "uneven_pairs": 0, "disturbed_counted_runs": 0
    }  # fmt: skip
    assert answer["search_runs"] == {"measured": 9, "disturbed": 2}
    assert (answer["verdict"], answer["trials"]) == ("confirmed", {"complete": 7, "infeasible": 1})


def test_an_unconfirmed_challenger_is_the_candidate_and_the_baseline_is_best() -> None:
    answer = summary.as_json(study(), UNBEATEN)
    assert (answer["verdict"], answer["best"]) == ("not_faster", answer["baseline"])
    assert answer["candidate"]["tokens_per_s_per_gpu"] == 950.0
    assert "exports" not in answer


def test_an_undecided_verdict_says_what_would_settle_it_and_why_the_answer_can_be_believed() -> None:
    noisy = Speedup(value=1.65, ci95=(0.86, 5.81), pairs=7, ratios=(0.86, 1.5, 1.6, 1.65, 1.7, 2.0, 5.81))
    settle = OpenVerdict(pairs=7, won_pairs=6, more_pairs=3, disturbed_counted_runs=2)
    beside = AgainstDefault(
        trial_number=2,
        description="DDP, micro batch 8",
        micro_batches=(1, 8),
        tokens_per_s_per_gpu=900,
        runs=1,
        ratio=1.05,
    )
    changed = UNBEATEN.model_copy(
        update={"verdict": Verdict.UNDECIDED, "speedup": noisy, "undecided": settle, "against_defaults": (beside,)}
    )
    text = summary.as_text(study(), changed)
    for words in (
        "undecided: keep",
        "won 6 of 7 pairs",
        "3 more pairs would confirm it",
        "other programs disturbed 2 of their 14 runs",
    ):
        assert words in text
    assert "1.05x the speed of DDP, micro batch 8" in text and "trust       !" in text
    assert "verdict     undecided: keep" in text and "speed-up " not in text, "no speed-up is claimed"

    answer = summary.as_json(study(), changed)
    assert answer["undecided"]["more_pairs"] == 3 and answer["against_defaults"][0]["micro_batches"] == [1, 8]
    assert any(reason["tone"] == "warn" for reason in answer["trust"])


def test_nothing_to_compare_gives_a_null_speedup() -> None:
    alone = UNBEATEN.model_copy(update={"speedup": None, "candidate": None})
    assert summary.as_json(study(), alone)["speedup"] is None
    assert "nothing to compare" in summary.as_text(study(), alone)


def test_the_summary_says_what_won_by_how_much_and_where_it_is() -> None:
    text = summary.as_text(study(), CONFIRMED, [], [], ["best/config.json"], "best/launch.sh --steps 10")
    for words in (
        "ZeRO-2, micro batch 4: 1,234",
        "verdict     confirmed: 1.31x as fast as the baseline (95 % interval 1.27x to 1.35x)",
        "1,200 to 1,260",
        "took 22 validation runs, failed ones included: 190 GPU-seconds",
        "confirmed",
        "3 configurations rejected",
        "best/launch.sh",
    ):
        assert words in text


def test_costs_are_those_of_all_final_comparisons_only_after_a_second_one() -> None:
    """A study numbers its final comparisons from 1: the words stood in every summary."""
    first = CONFIRMED.final_comparison
    assert first is not None and first.number == 1
    again = CONFIRMED.model_copy(update={"final_comparison": first.model_copy(update={"number": 3})})
    text = summary.as_text(study(), again)
    assert "took 22 validation runs in all final comparisons of the study, failed ones included" in text


def test_a_remark_tells_the_gain_from_the_quotient_of_the_two_speeds() -> None:
    remark = "; the gain is the median of the pairs, not the quotient of these speeds"
    row = summary.as_text(study(), CONFIRMED).splitlines()[2]
    assert row == "baseline    DDP, micro batch 1: 942 tokens/s/GPU, 419.8 MiB allocated at the peak", (
        "1234.5 / 942 is 1.31"
    )
    other = CONFIRMED.model_copy(update={"speedup": Speedup(value=1.28, ci95=(1.27, 1.35), pairs=8)})
    assert summary.as_text(study(), other).splitlines()[2] == row + remark
    assert remark not in summary.as_text(study(), CONFIRMED.model_copy(update={"speedup": None}))


def test_a_name_that_several_trials_have_gets_the_number_and_the_settings_that_differ() -> None:
    """The best of a study had exactly the name of a trial that lost."""
    other = ZERO.model_copy(update={"strategy": ZeroConfig(stage=2, overlap_comm=False)})
    assert other.describe() == ZERO.describe() and other != ZERO
    trials = [trial(number, TrialState.COMPLETE) for number in range(3)]
    trials[2] = trials[2].model_copy(update={"config": other})
    best, baseline = summary.as_text(study(), CONFIRMED, trials).splitlines()[1:3]
    assert best.startswith("best        trial 1, ZeRO-2, micro batch 4 (overlap")
    assert baseline.startswith("baseline    DDP, micro batch 1 (a documented default): ")
    assert "trial 1" not in summary.as_text(study(), CONFIRMED, trials[:2]).splitlines()[1]


def test_a_busy_machine_leaves_the_same_state_with_and_without_a_baseline_of_the_users() -> None:
    state = "too busy: no candidate is shown to be faster on a quiet machine; "
    busy = {"verdict": Verdict.TOO_BUSY}
    kept, faster = UNBEATEN.model_copy(update=busy), CONFIRMED.model_copy(update=busy)
    assert summary.as_text(study(), kept).startswith(f"verdict     {state}keep the baseline (so far 1.01x")
    best = f"trial {faster.best.trial_number} ({faster.best.description})"
    now = f"for now, {best} is recommended: beside other programs it was 1.31x as fast as the baseline (95 % interval "
    assert summary.as_text(study(), faster).startswith(f"verdict     {state}{now}")


def test_the_summary_begins_with_the_verdict_and_names_speeds_before_it_says_how_they_were_measured() -> None:
    story, measured = summary.as_text(study(), CONFIRMED).split("\nmeasured")
    assert story.startswith("verdict     confirmed") and story.count("tokens/s/GPU") == 2
    assert not re.search(r"\d+ (paired |validation |search )?(runs|pairs)\b", story)
    assert "942 tokens/s/GPU in 5 runs" in measured and "8 paired runs" in measured


def test_a_kept_baseline_is_named_once() -> None:
    rows = summary.as_text(study(), UNBEATEN).splitlines()
    assert rows[0] == (
        "verdict     not faster: keep the baseline; the fastest candidate reached 1.01x its speed (95 % interval 0.97x to 1.05x)"
    )
    assert rows[1].startswith("best        the baseline, DDP, micro batch 1: 942 tokens/s/GPU, ")
    assert rows[2].startswith("candidate   ZeRO-2, micro batch 4: ") and "tokens" not in rows[2]


def test_the_summary_says_why_a_configuration_did_not_count() -> None:
    too_much = Failure(kind=FailureKind.OVER_LIMIT, message="took 5.1 GiB of 4.0")
    trials, rejections = [trial(0, TrialState.INFEASIBLE, failure=too_much)], [rejected(ZERO, 6.0)]
    text = summary.as_text(study(), CONFIRMED, trials, rejections)
    assert "infeasible  DDP, micro batch 1: over_limit: took 5.1 GiB of 4.0" in text
    assert "rejected    ZeRO-2, micro batch 4: holds at least 6.0 GiB" in text


def test_the_reason_beside_an_earlier_answer_is_that_of_the_extension() -> None:
    def counts(**changes: Any) -> str:
        return re.search(r"^trials +(.*)$", summary.as_text(study(result=CONFIRMED, **changes), CONFIRMED), re.M)[1]  # type: ignore[index]

    failed = counts(state=StudyState.FAILED, phase=StudyPhase.DONE, reason="planning failed")
    assert failed.endswith("; extending the study failed: planning failed")
    assert counts(reason="waiting for a worker: why").endswith("before they ran; waiting for a worker: why")
    complete = counts(state=StudyState.COMPLETE, phase=StudyPhase.DONE, reason="all 8 trials are used")
    assert complete.endswith("; search ended: all 8 trials are used")
