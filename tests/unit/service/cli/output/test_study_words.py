"""Words about trials: what they test, what sets namesakes apart, and why none has a result."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, ZeroConfig
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import TrialReason, TrialState
from shardtune.service.cli.tune import job
from shardtune.service.wording import change_words, disambiguate, study_words
from tests.unit.service.cli.output.shown_studies import CONFIRMED, DDP, ZERO, study, trial


def test_what_a_trial_tests_has_the_names_that_people_know_knobs_by() -> None:
    tests = change_words.describe_change("checkpoint_every 3 instead of 1; malloc keep instead of default; and 2 more")
    assert (
        tests
        == "checkpointing, every 3 instead of 1; freed host memory kept by the process instead of returned to the system; and 2 more"
    )
    tests = change_words.describe_change(
        "static_graph True instead of False; reduce_bucket_size 25000000 instead of 500000000"
    )
    assert tests == "with static graph; reduce bucket size 25 M instead of 500 M"
    assert change_words.describe_change("threads 1 instead of 0") == "threads 1 instead of cores divided by ranks"
    assert change_words.describe_change("the fastest by prediction") == "the fastest by prediction"
    assert change_words.describe_change("fsdp2 instead of zero") == "FSDP2 instead of ZeRO"


def test_trials_that_read_alike_are_told_apart_by_what_they_differ_in():
    other = DDP.model_copy(update={"strategy": DdpConfig(bucket_cap_mb=50)})
    of_trials = disambiguate.describe_trials(
        [trial(0, TrialState.COMPLETE), trial(2, TrialState.COMPLETE).model_copy(update={"config": other})]
    )
    assert of_trials[0] != of_trials[2] and "bucket 50 MiB" in disambiguate.distinct_descriptions([DDP, other])[1]


def test_the_summary_says_when_nothing_but_the_starting_configurations_ran() -> None:
    seed = trial(0, TrialState.COMPLETE)
    sampled = seed.model_copy(update={"origin": "sampler"})
    assert "the search never began" in str(study_words.failure_rows([seed], []))
    assert "the search never began" not in str(study_words.failure_rows([seed, sampled], []))


@pytest.mark.parametrize(
    ("trials", "rejected", "state", "code"),
    [
        ({"infeasible": 3}, 0, StudyState.FAILED, 3),
        ({}, 36, StudyState.FAILED, 3),
        ({"complete": 1}, 0, StudyState.FAILED, 3),
        ({"infeasible": 1, "failed": 2}, 0, StudyState.FAILED, 4),
        ({}, 0, StudyState.FAILED, 4),
        ({"complete": 1}, 0, StudyState.CANCELLED, 4),
    ],
)
def test_an_end_without_a_result_tells_whose_fault_it_is(
    trials: dict[str, int], rejected: int, state: StudyState, code: int
) -> None:
    ended = study(trials=trials, rejected=rejected, state=state, reason="no configuration is feasible: why")
    assert job.error_without_result(ended, []).exit_code == code


def test_an_extension_that_fails_is_an_error_which_says_that_the_earlier_answer_stays() -> None:
    failed = study(result=CONFIRMED, trials={"complete": 3}, state=StudyState.FAILED, reason="the search failed")
    error = job.error_without_result(failed, [])
    assert (error.exit_code, str(error)) == (
        4,
        "extending the study failed: the search failed; its earlier answer stays",
    )


def test_settings_beyond_the_third_are_named_where_only_they_differ() -> None:
    """Two trials had the same name although their buckets differed."""
    strategies = [
        ZeroConfig(stage=2, overlap_comm=overlap, contiguous_gradients=overlap, reduce_bucket_size=size, round_robin_gradients=is_robin)
        for overlap, size, is_robin in ((True, 10**6, False), (False, 10**6, True), (True, 10**6, True), (True, 2 * 10**6, True))
    ]  # fmt: skip
    names = disambiguate.distinct_descriptions([ZERO.model_copy(update={"strategy": one}) for one in strategies])
    assert len(set(names)) == len(strategies)


def test_a_change_names_the_trial_that_it_changes() -> None:
    chance = {"probability_faster": 0.5, "probability_infeasible": 0.0}
    speeds = {f"{end}tokens_per_s_per_gpu": 9.0 for end in ("", "low_", "high_")}
    reason = TrialReason(
        expected_gain=0.061, tests="zero instead of ddp; micro_batch 4 instead of 8", **chance, **speeds
    )
    changed = "ZeRO instead of DDP; micro batch 4 instead of 8; expected gain 6.1%"
    assert change_words.describe_reason(reason) == changed
    compared = reason.model_copy(update={"compared_trial": 2})
    assert change_words.describe_reason(compared) == f"like trial 2, but {changed}"
