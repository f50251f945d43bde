import math
import re
from dataclasses import replace

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.training.optimizers import Muon
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Memory
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.short_steps import ShortStepTimes
from shardtune.api_schemas.trials.trial import TrialReason, TrialState
from shardtune.service.planning import agreement
from shardtune.tuner.history import Observation
from shardtune.tuner.objective import over_limit_failure
from shardtune.tuner.search.stopping import extend_budget, no_gain_reason, stop_reason
from shardtune.tuner.verdict import paired_test, parity, ranking, undecided
from shardtune.tuner.verdict.comparison_blocks import Pair
from shardtune.tuner.verdict.final_comparison import RankingState
from shardtune.tuner.verdict.run_load import UNDISTURBED, RunLoad
from tests.support.values.tuner_inputs import complete, cpu, gpus, infeasible, measured

DDP, FSDP2 = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2))
ZERO, ZERO_3 = TrialConfig(strategy=ZeroConfig(stage=2)), TrialConfig(strategy=ZeroConfig(stage=3))
BF16, FP32 = PRECISIONS["bf16-mixed"], PRECISIONS["fp32"]
DISTURBED = RunLoad(is_disturbed=True)
FREE = Budget()


def run(speeds, origin="sampler"):
    return [complete(i, DDP, speed, origin) for i, speed in enumerate(speeds)]


def test_exactly_the_trials_of_the_budget_are_run():
    assert stop_reason(run([100] * 19), Budget(max_trials=20), 0, 0) is None
    end = stop_reason(run([100] * 20), Budget(max_trials=20), 0, 0)
    assert end.code is StudyReasonCode.TRIALS_USED and "20 trials" in end.text
    alone = stop_reason(run([100]), Budget(max_trials=1), 0, 0)
    assert alone.text == "the only trial of the budget is used"


def test_the_default_budget_ends_when_gain_dries_up_after_twelve_trials():
    assert stop_reason(run([100] * 11), FREE, 0, 0) is None
    assert stop_reason(run([100] * 12), FREE, 0, 0).code is StudyReasonCode.LITTLE_GAIN
    assert stop_reason(run([100] * 11 + [102]), FREE, 0, 0) is None
    assert stop_reason(run([100] * 4 + [102] + [90] * 8), FREE, 0, 0) is not None


def test_the_default_budget_ends_at_forty_whatever_happens():
    improving = run([100 * 1.1**i for i in range(40)])
    assert stop_reason(improving[:39], FREE, 0, 0) is None
    assert stop_reason(improving, FREE, 0, 0) is not None


def gaining(gain, gpu_seconds=7200.0):
    speeds = dict.fromkeys(("tokens_per_s_per_gpu", "low_tokens_per_s_per_gpu", "high_tokens_per_s_per_gpu"), 100.0)
    chances = {"probability_faster": 0.5, "probability_infeasible": 0.0}
    return TrialReason(expected_gain=gain, expected_gpu_seconds=gpu_seconds, tests="", **chances, **speeds)


def test_a_declared_run_lets_the_search_go_on_while_a_trial_saves_more_of_it_than_it_takes():
    """Two GPU-hours a trial: of 1,000 planned a gain of 0.25 % saves 2.5, of 100 a gain of 1.5 % saves 1.5."""
    much, little, completed = Budget(planned_gpu_hours=1000), Budget(planned_gpu_hours=100), run([100] * 20)
    assert no_gain_reason(gaining(0.0025), completed, FREE) is not None
    assert no_gain_reason(gaining(0.0025), completed, much) is None and stop_reason(completed, much, 0, 0) is None
    assert no_gain_reason(gaining(0.015), completed, FREE) is None
    end = no_gain_reason(gaining(0.015), completed, little)
    assert end.code is StudyReasonCode.COSTS_MORE
    assert "save 1.5 of the 100 GPU-hours planned, less than the 2 that it takes, after 20 trials" in end.text
    assert no_gain_reason(gaining(0.0), completed[:5], little) is None
    assert (
        "less than 1%" in no_gain_reason(None, completed, much).text and no_gain_reason(None, completed, FREE) is None
    )


def test_a_declared_run_and_a_number_of_trials_exclude_each_other():
    with pytest.raises(ValueError, match=r"planned_gpu_hours \(5\).*max_trials \(3\).*leave one out"):
        Budget(planned_gpu_hours=5, max_trials=3)
    more = extend_budget(Budget(planned_gpu_hours=5), Extension(add_trials=3), 7, 0.0, 0.0)
    assert more.max_trials == 10 and more.planned_gpu_hours is None


def test_nothing_feasible_yet_is_no_reason_to_stop_early():
    assert stop_reason([infeasible(i, DDP) for i in range(20)], FREE, 0, 0) is None


def test_running_and_failed_trials_do_not_count_as_lack_of_gain():
    idle = [Observation(i, DDP, "sampler", TrialState.FAILED) for i in range(8, 20)]
    assert stop_reason(run([100] * 8) + idle, FREE, 0, 0) is None


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (Budget(max_gpu_seconds=50), StudyReasonCode.GPU_SECONDS_USED),
        (Budget(max_wall_seconds=50), StudyReasonCode.WALL_SECONDS_USED),
    ],
)
def test_a_spent_budget_is_named(budget, code):
    end = stop_reason(run([1]), budget, 60, 60)
    assert end.code is code and "50" in end.text and end.sentence.endswith(" (60)")


def workload_of(**changes):
    values = {"sequence_length": 64, "global_batch": 16, "precision": "bf16-mixed"} | changes
    return Workload.model_validate(values)


def judge(*observations, precision=BF16, single=False):
    return parity.group_by_parity(observations, precision, single)


def test_the_reference_needs_a_trial_of_another_backend():
    assert judge(complete(0, DDP), complete(1, DDP.model_copy(update={"micro_batch": 2}))).reference is None
    agreed = judge(complete(0, DDP), complete(1, FSDP2))
    assert (agreed.reference, agreed.confirmed_by, agreed.infeasible) == (0, 1, {})


def test_a_third_trial_decides_a_disagreement():
    history = [complete(0, ZERO, loss=5.35), complete(1, FSDP2, loss=4.966)]
    assert judge(*history).reference is None
    decided = judge(*history, complete(2, DDP, loss=4.9662))
    assert (decided.reference, decided.confirmed_by) == (1, 2)
    assert "loss of step 0 is 5.35, but 4.966 in reference trial 1" in decided.infeasible[0]


def test_the_largest_differences_of_trials_that_agree_are_kept_beside_the_bounds():
    history = [complete(0, ZERO), complete(1, FSDP2, loss=5.001), complete(2, DDP, loss=5.35)]
    groups = judge(*history)
    assert set(groups.infeasible) == {2}
    steps = zip(*(obs.measurement.trajectory for obs in history[:2]), strict=True)
    largest = max(parity.relative_difference(first.loss, other.loss) for first, other in steps)
    assert parity.largest_differences(history, groups)["loss"] == largest
    assert parity.largest_differences(history, judge(history[0])) == {}
    (note,) = agreement.measured_differences(history, workload_of(), gpus(), groups)
    assert "largest differences from the reference training: loss" in note and "(allowed 2e-03)" in note
    assert agreement.measured_differences(history, workload_of(), cpu(2), groups) == ()


def test_the_bounds_beside_the_largest_differences_are_those_of_the_training():
    history = [complete(0, ZERO), complete(1, FSDP2, loss=5.001)]
    notes = [
        agreement.measured_differences(history, workload_of(**changes), gpus(), judge(*history))[0]
        for changes in (
            {"float8": "tensorwise"},
            {"float8": "rowwise"},
            {"precision": "fp32", "optimizer": "adamw-8bit"},
        )
    ]
    bounds = [re.findall(r"loss \S+ \(allowed ([^)]+)\)", note)[0] for note in notes]
    assert bounds == ["2e-03, between micro batches 6e-03", "2e-03", "1e-04"]
    assert all(len(re.findall("allowed", note)) == 4 for note in notes)


def test_trials_of_another_batch_are_not_compared():
    short = ShortStepTimes(parity_samples=16, parity_accumulation=2)
    history = [complete(0, ZERO), complete(1, FSDP2), complete(2, DDP)]
    other = replace(history[2], measurement=history[2].measurement.model_copy(update={"short_steps": short}))
    decided = judge(*history[:2], other)
    assert "trained on 16 samples and those of reference trial 0 on the whole global batch" in decided.infeasible[2]
    assert judge(history[0], other).reference is None


def test_a_later_pair_does_not_replace_the_reference():
    history = [complete(0, ZERO, loss=5.35), complete(1, FSDP2), complete(2, DDP), complete(3, FSDP2, loss=5.35)]
    assert judge(*history).reference == 1
    assert set(judge(*history).infeasible) == {0, 3}


def test_a_trial_rejected_before_is_rejected_again():
    failure = Failure(kind=FailureKind.NUMERICS, message="left the reference")
    rejected = Observation(2, ZERO, "sampler", TrialState.INFEASIBLE, measured(9, loss=5.35), failure)
    assert set(judge(complete(0, DDP), complete(1, FSDP2), rejected).infeasible) == {2}


def test_a_run_over_its_memory_may_confirm_but_not_lead():
    failure = Failure(kind=FailureKind.OVER_LIMIT, message="too much")
    over = Observation(0, DDP, "default", TrialState.INFEASIBLE, measured(9), failure)
    agreed = judge(over, complete(1, FSDP2))
    assert (agreed.reference, agreed.confirmed_by) == (1, 0)


def test_with_one_backend_its_other_configurations_confirm():
    assert judge(complete(0, ZERO), single=True).reference == 0
    pair = judge(complete(0, ZERO), complete(1, ZERO_3), single=True)
    assert (pair.reference, pair.confirmed_by) == (0, 1)
    assert judge(complete(0, ZERO), complete(1, ZERO_3, loss=6), single=True).reference is None


def test_fp32_is_held_to_tighter_bounds():
    history = [complete(0, DDP, loss=5.0), complete(1, FSDP2, loss=5.001)]
    assert judge(*history).reference == 0
    assert judge(*history, precision=FP32).reference is None


def confirmed(obs, speeds):
    return Observation(
        obs.number, obs.config, obs.origin, obs.state, obs.measurement, None, tuple(map(measured, speeds))
    )


AGREED = parity.ParityGroups(reference=0, confirmed_by=1)


def answer(history, field, ratios, challenger):
    ranking_state = RankingState(field.baseline, challenger, tuple(Pair(math.log(ratio)) for ratio in ratios), None)
    return ranking.result(history, field, ranking_state, (20, 120.0))


def test_the_fastest_are_compared_with_the_fastest_documented_default():
    history = [complete(0, DDP, 120, "sampler"), complete(1, FSDP2, 100, "default"), complete(2, ZERO, 130)]
    field = ranking.pick_finalists(history, False, AGREED)
    assert (field.baseline, field.candidates) == (1, (2, 0))
    assert field.defaults == (1,)
    history[1], history[2] = confirmed(history[1], [100, 101, 99]), confirmed(history[2], [128, 131, 130])
    verdict_result = answer(history, field, [1.3] * 7, 2)
    assert verdict_result.verdict is Verdict.CONFIRMED and verdict_result.candidate is None
    assert "documented default" in verdict_result.notes[0]
    assert (verdict_result.best.trial_number, verdict_result.best.tokens_per_s_per_gpu, verdict_result.best.runs) == (
        2,
        130,
        3,
    )
    assert (
        verdict_result.best.spread,
        verdict_result.final_comparison.runs,
        verdict_result.final_comparison.gpu_seconds,
    ) == (
        (128, 131),
        20,
        120.0,
    )


def test_few_of_many_reach_the_final_comparison():
    history = [complete(i, DDP, 450 + i, "baseline" if i == 0 else "sampler") for i in range(23)]
    assert ranking.pick_finalists(history, True, AGREED).candidates == tuple(range(22, 2, -1))


def test_a_configuration_far_behind_in_the_search_is_no_finalist():
    history = [
        complete(i, DDP, speed, "baseline" if i == 0 else "sampler") for i, speed in enumerate((50, 89, 90, 100))
    ]
    assert ranking.pick_finalists(history, True, AGREED).candidates == (3, 2)


def test_a_challenger_that_does_not_pass_leaves_the_baseline_best():
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110)]
    field = ranking.pick_finalists(history, True, AGREED)
    verdict_result = answer(history, field, [1.01, 0.99, 1.02, 0.98, 0.97, 1.01, 0.99], 1)
    assert verdict_result.verdict is Verdict.NOT_FASTER
    assert verdict_result.best == verdict_result.baseline and verdict_result.candidate.trial_number == 1
    assert verdict_result.speedup.ci95 == pytest.approx((0.97, 1.02))


def test_too_few_pairs_give_no_interval_and_say_so():
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110)]
    verdict_result = answer(history, ranking.pick_finalists(history, True, AGREED), [1.3] * 6, 1)
    assert verdict_result.speedup is None and verdict_result.verdict is Verdict.UNDECIDED
    assert verdict_result.best == verdict_result.baseline and verdict_result.undecided.more_pairs == 1
    assert "too few pairs" in verdict_result.notes[-1]


def test_without_a_users_baseline_the_better_point_estimate_is_recommended_and_the_verdict_says_what_is_proved():
    """A tie must not go to whom chance made the baseline."""
    history = [complete(0, DDP, 100, "default"), complete(1, FSDP2, 98, "default"), complete(2, ZERO, 99)]
    field = ranking.pick_finalists(history, False, AGREED)
    assert (field.baseline, field.defaults) == (0, (0, 1))
    ahead = answer(history, field, [1.3, 0.8, 1.35, 1.3, 1.3, 1.7, 1.2], 1)
    assert (ahead.best.trial_number, ahead.baseline.trial_number, ahead.candidate) == (1, 0, None)
    assert ahead.verdict is Verdict.UNDECIDED and ahead.undecided.won_pairs == 6 and ahead.undecided.more_pairs == 3
    behind = answer(history, field, [0.9, 0.8, 0.95, 0.9, 1.01, 0.7, 0.9], 1)
    assert behind.best == behind.baseline and behind.verdict is Verdict.NOT_FASTER
    own = ranking.pick_finalists([complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 98, "default")], True, AGREED)
    assert own.defaults == ()
    assert answer(history, own, [1.3, 0.8, 1.35, 1.3, 1.3, 1.7, 1.2], 1).best.trial_number == 0


def test_the_answer_stands_beside_each_default_at_its_best_micro_batch():
    wide = DDP.model_copy(update={"micro_batch": 8})
    history = [complete(0, DDP, 100, "default"), complete(1, wide, 165), complete(2, ZERO, 170)]
    verdict_result = answer(history, ranking.pick_finalists(history, False, AGREED), [1.7] * 7, 2)
    (beside,) = verdict_result.against_defaults
    assert (beside.trial_number, beside.micro_batches) == (1, (1, 8))
    assert verdict_result.speedup.value == pytest.approx(1.7) and beside.ratio == pytest.approx(170 / 165)


@pytest.mark.parametrize(
    ("ratios", "word", "more"),
    [
        ([1.3] * 7, Verdict.CONFIRMED, None),
        ([1.65, 1.7, 0.86, 1.5, 5.81, 2.0, 1.1], Verdict.UNDECIDED, 3),
        ([0.97, 1.01, 0.99, 1.02, 0.98, 1.0, 0.99], Verdict.NOT_FASTER, None),
        ([0.5, 1.9, 0.8, 0.9, 0.7, 1.3, 0.9], Verdict.UNDECIDED, None),
        ([1.3] * 5, Verdict.UNDECIDED, 2),
    ],
)
def test_three_verdicts(ratios, word, more):
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110)]
    verdict_result = answer(history, ranking.pick_finalists(history, True, AGREED), ratios, 1)
    assert verdict_result.verdict is word and (verdict_result.undecided is not None) == (word is Verdict.UNDECIDED)
    assert verdict_result.undecided is None or verdict_result.undecided.more_pairs == more


CLEAR, LEVEL = [1.3] * 8, [0.97, 1.01, 0.99, 1.02, 0.98, 1.0, 0.99, 1.0]


@pytest.mark.parametrize(
    ("ratios", "disturbed_pairs", "word"),
    [
        (CLEAR, 0, Verdict.CONFIRMED),
        (CLEAR, 7, Verdict.CONFIRMED),
        (CLEAR, 8, Verdict.UNDECIDED),
        ([1.3] * 9 + [0.9], 9, Verdict.UNDECIDED),
        (LEVEL, 0, Verdict.NOT_FASTER),
        (LEVEL, 3, Verdict.NOT_FASTER),
        (LEVEL, 4, Verdict.UNDECIDED),
        (LEVEL, 8, Verdict.UNDECIDED),
    ],
)
def test_no_verdict_rests_on_disturbed_pairs_alone(ratios, disturbed_pairs, word):
    """The first pairs are disturbed. A gain needs an undisturbed pair that does not contradict, "not faster" a majority."""
    pairs = [
        Pair(math.log(ratio), (DISTURBED, UNDISTURBED) if at < disturbed_pairs else (UNDISTURBED, UNDISTURBED))
        for at, ratio in enumerate(ratios)
    ]
    speedup = paired_test.speedup([pair.log_ratio for pair in pairs])
    assert undecided.verdict(pairs, speedup) is word
    assert undecided.open_verdict(pairs).disturbed_pairs == disturbed_pairs


def disturb(obs):
    return replace(obs, measurement=obs.measurement.model_copy(update={"disturbed": "other programs"}))


def test_a_disturbed_search_run_is_held_to_other_disturbed_ones_when_finalists_are_picked():
    """The baseline and the fastest ran undisturbed; what was disturbed may be as fast, but not what is slow beside it."""
    undisturbed = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110), complete(2, ZERO, 60)]
    disturbed = [disturb(complete(number, ZERO_3, speed)) for number, speed in ((3, 60), (4, 55), (5, 50))]
    assert ranking.pick_finalists(undisturbed + disturbed, True, AGREED).candidates == (1, 3, 4)


def test_the_fastest_of_the_search_is_a_finalist_however_fast_the_baseline_was():
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 55), complete(2, ZERO, 54)]
    assert ranking.pick_finalists(history, True, AGREED).candidates == (1,)
    assert ranking.pick_finalists([history[0], *map(disturb, history[1:])], True, AGREED).candidates == (1, 2)


def test_a_baseline_that_did_not_fit_is_replaced_and_said_so():
    gone = Observation(
        0, ZERO, "baseline", TrialState.INFEASIBLE, failure=Failure(kind=FailureKind.OOM, message="out of memory")
    )
    field = ranking.pick_finalists([gone, complete(1, DDP, 90, "default"), complete(2, FSDP2, 95)], True, AGREED)
    assert field.baseline == 1
    assert "out of memory" in field.notes[0]


def test_a_single_feasible_configuration_has_nothing_to_beat():
    history = [complete(0, DDP, 100, "default"), infeasible(1, FSDP2)]
    field = ranking.pick_finalists(history, False, parity.ParityGroups(0, None))
    outcome = ranking.result_of_baseline(history, field)
    assert field.candidates == ()
    assert outcome.speedup is None and outcome.final_comparison is None
    assert outcome.verdict is Verdict.UNDECIDED and outcome.undecided is None


def test_no_winner_until_two_agree():
    field = ranking.pick_finalists([complete(0, DDP)], False, parity.ParityGroups(None, None))
    assert field.baseline is None and "no winner" in field.notes[0]


def test_a_trial_that_trains_something_else_never_wins():
    history = [complete(0, DDP, 100, "default"), complete(1, FSDP2, 90), complete(2, ZERO, 900)]
    parity_groups = parity.ParityGroups(0, 1, {2: "left"})
    assert ranking.pick_finalists(history, False, parity_groups).candidates == (1,)
    best = ranking.best_so_far(history, parity_groups)
    assert best is not None and best.trial_number == 0


def test_memory_over_the_headroom_is_over_limit_and_never_an_oom():
    cluster, objective = cpu(memory_gib=1.0), Objective(memory_headroom=0.1)
    assert over_limit_failure(measured(1, memory_gib=0.9), cluster, objective) is None
    failure = over_limit_failure(measured(1, memory_gib=0.91), cluster, objective)
    assert failure is not None and failure.kind is FailureKind.OVER_LIMIT
    assert "0.91 GiB exceeds 0.90 GiB" in failure.message


def test_what_the_device_reports_counts_before_the_allocator():
    memory = Memory(peak_allocated_gib=0.5, peak_reserved_gib=0.6, device_used_gib=2.0)
    used = measured(1).model_copy(update={"memory": memory})
    assert "device memory in use of 2.00" in over_limit_failure(used, cpu(memory_gib=1.0), Objective()).message


def test_updates_that_are_rounded_may_differ_more_but_not_under_a_rounded_precision() -> None:
    assert parity.tolerance(FP32, Muon()).loss > parity.tolerance(FP32).loss
    assert parity.tolerance(FP32, Muon()).loss < parity.tolerance(BF16).loss
    assert parity.tolerance(BF16, Muon()) == parity.tolerance(BF16)
