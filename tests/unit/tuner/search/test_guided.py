"""The guided sampler: it begins where the prediction points, and goes where the measurements do."""

from dataclasses import replace

import numpy as np
import pytest

from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import KnobChange, TrialOrigin, TrialState, changes_in
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, MemoryCalibration
from shardtune.tuner.prediction.learning import MeasuredTrials, predict_speeds
from shardtune.tuner.search.guided_sampler.acquisition import (
    TrialCost,
    expected_gain,
    faster_probability,
    infeasible_probability,
    utility,
)
from shardtune.tuner.search.guided_sampler.axes import axes_of
from shardtune.tuner.search.guided_sampler.knowledge import Knowledge
from shardtune.tuner.search.guided_sampler.pool import Pool, neighbours, sample_evenly
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictionBasis
from shardtune.tuner.search.guided_sampler.residual import Inputs, Posterior, Residual, concatenate
from shardtune.tuner.search.guided_sampler.sampler import GuidedSampler
from shardtune.tuner.search.space.backends.registry import KNOBS
from shardtune.tuner.search.space.flat import flatten
from shardtune.tuner.search.suggest import next_config
from tests.support.values.tuner_inputs import TINY, WORKLOAD, complete, cpu, gpus, measured, open_gate, shape, space_of

TWO_BACKENDS = SpaceLimits(backends=("ddp", "fsdp2"))


@pytest.fixture(scope="module")
def pool():
    space = space_of(cpu(), TWO_BACKENDS)
    return Pool(space, PredictionBasis(shape("llama-tiny"), WORKLOAD, cpu()))


def ask(pool, history, limit_gib=4.0, seed=0):
    return next_config(pool.space, (), history, (), open_gate, seed, (), GuidedSampler(pool, Knowledge(limit_gib)))


def predicted(pool, configs):
    return predict_speeds(pool.basis.shape, WORKLOAD, pool.basis.cluster, configs, NO_CALIBRATIONS)


def test_the_first_trial_is_the_fastest_by_prediction(pool):
    everything = list(pool.space.enumerate())
    best = predicted(pool, everything).max()
    answer = ask(pool, [])
    assert predicted(pool, [answer.config])[0] == pytest.approx(best)
    assert answer.reason is not None and answer.reason.tests == "the fastest by prediction"


def test_each_axis_that_a_study_names_is_tried_once_and_two_at_once(pool):
    limits = SpaceLimits(backends=("ddp", "fsdp2"), knobs={"tensor_parallel": (1, 2), "context_parallel": (1, 2)})
    model_summary = TINY.model_copy(update={"context_heads": 4, "tensor_divisor": 4})
    space = space_of(cpu(4), limits, WORKLOAD, model_summary)
    named = Pool(space, PredictionBasis(shape("llama-tiny"), WORKLOAD, cpu(4)))
    history = []
    for number in range(6):
        answer = ask(named, history)
        slow = axes_of(flatten(answer.config))
        assert ("first with " in answer.reason.tests) == bool(slow)
        history.append(replace(complete(number, answer.config, 10.0 if slow else 1000.0), origin=TrialOrigin.SAMPLER))
    attempt = [axes_of(flatten(obs.config)) for obs in history]
    both = frozenset({"context_parallel", "tensor_parallel"})
    assert attempt[0] == frozenset() and {frozenset(), *(frozenset({axis}) for axis in both), both} == set(attempt)
    assert [len(item) for item in attempt].count(0) == 3, "once each"


def test_the_same_history_gives_the_same_suggestion_from_a_new_pool(pool):
    history = [
        complete(i, config, 100.0 + i) for i, config in zip(range(5), sample_evenly(pool.space, 40), strict=False)
    ]
    again = Pool(space_of(cpu(), TWO_BACKENDS), pool.basis)
    assert ask(pool, history) == ask(again, history)


def test_what_the_prediction_does_not_see_is_learnt_from_the_trials(pool):
    """Every configuration with `gradient_as_bucket_view` is twice as fast as predicted."""

    def gain(config):
        return 2.0 if getattr(config.strategy, "gradient_as_bucket_view", 0) else 1.0

    def speed(config):
        return float(predicted(pool, [config])[0]) * gain(config)

    everything = list(pool.space.enumerate())
    best = (predicted(pool, everything) * np.array([gain(config) for config in everything])).max()
    history = []
    for number in range(12):
        config = ask(pool, history).config
        history.append(complete(number, config, speed(config)))
    assert max(map(speed, (obs.config for obs in history))) > 0.97 * best


def test_a_pruned_trial_teaches_less_surely_and_is_nothing_to_beat(pool):
    configs = list(sample_evenly(pool.space, 40))[:4]
    history = [complete(i, config, 100.0) for i, config in enumerate(configs)]
    slow = complete(4, next(iter(pool.space.enumerate())), 20.0)
    full, pruned, fast = (
        ask(pool, [*history, replace(slow, state=state, measurement=measured(speed))]).reason
        for state, speed in ((TrialState.COMPLETE, 20.0), (TrialState.PRUNED, 20.0), (TrialState.PRUNED, 9000.0))
    )
    without = ask(pool, history).reason
    assert pruned.tokens_per_s_per_gpu not in (full.tokens_per_s_per_gpu, without.tokens_per_s_per_gpu)
    assert fast.tokens_per_s_per_gpu > without.tokens_per_s_per_gpu and fast.expected_gain > 0.5


def test_a_running_trial_is_not_proposed_again_and_makes_the_next_one_differ(pool):
    history = [complete(i, config, 100.0) for i, config in zip(range(3), sample_evenly(pool.space, 40), strict=False)]
    first = ask(pool, history).config
    second = ask(pool, [*history, Observation(3, first, "sampler", TrialState.RUNNING)]).config
    assert second not in (None, first)


def test_a_trial_says_what_it_is_expected_to_gain_and_what_it_tests(pool):
    history = [complete(i, config, 100.0) for i, config in zip(range(3), sample_evenly(pool.space, 40), strict=False)]
    reason = ask(pool, history).reason
    assert reason is not None and reason.expected_gain > 0 and 0 < reason.probability_faster <= 1
    assert reason.low_tokens_per_s_per_gpu < reason.tokens_per_s_per_gpu < reason.high_tokens_per_s_per_gpu
    changes = [part for part in changes_in(reason.tests) if isinstance(part, KnobChange)]
    assert changes and {change.knob for change in changes} <= {"", *KNOBS} and reason.expected_gpu_seconds > 0


def test_more_memory_than_there_is_is_learnt_from_the_peaks_that_were_measured(pool):
    """Peaks are all 1.6 times what is predicted: the sampler, unlike the gate, keeps away from what that leaves too large."""
    sizes = pool.peak_gib[: pool.candidate_count]
    limit = float(np.median(sizes)) * 1.6

    def observe(number, config):
        (row,) = pool.rows([config])
        peak = 1.6 * float(pool.peak_gib[row])
        ran = measured(float(predicted(pool, [config])[0]), memory_gib=peak)
        if peak <= limit:
            return Observation(number, config, "sampler", TrialState.COMPLETE, ran)
        failure = Failure(kind=FailureKind.OVER_LIMIT, message="too much", peak_allocated_gib=peak)
        return Observation(number, config, "sampler", TrialState.INFEASIBLE, ran, failure)

    history = []
    for number in range(14):
        history.append(observe(number, ask(pool, history, limit).config))
    assert sum(obs.state is TrialState.INFEASIBLE for obs in history[4:]) <= 1


def test_what_is_like_a_trial_that_ran_out_of_memory_is_thought_to_fail_whatever_it_held_by_then(pool):
    config = ask(pool, []).config
    failure = Failure(kind=FailureKind.OOM, message="out of memory", peak_allocated_gib=0.001)
    history = [Observation(0, config, "sampler", TrialState.INFEASIBLE, failure=failure)]
    memory_calibration, rows = MemoryCalibration(), np.arange(pool.candidate_count)
    risk = infeasible_probability(pool, rows, history, memory_calibration, 4.0)
    (place,) = pool.rows([config])
    assert risk[place] == risk.max() == pytest.approx(0.5, abs=0.01)
    assert infeasible_probability(pool, rows, [], memory_calibration, 4.0).max() < 0.01


@pytest.mark.parametrize("most", [1.0, 0.01])
def test_a_risk_stands_against_a_gain_however_small_gains_are(most):
    """Gains of the most, of half of it, and next to none; the last is certain, and slow."""
    gain, risk = np.array([most, most / 2, most / 1000]), np.array([0.3, 0.0, 0.0])
    order = np.argsort(-utility(gain, risk, np.array([1.0, 1.0, 50.0])))
    assert list(order) == [0, 1, 2]
    assert list(np.argsort(-utility(gain, np.array([0.9, 0.0, 0.0]), np.ones(3)))) == [1, 2, 0]


def test_two_models_that_both_hold_a_candidate_to_be_slow_do_not_make_it_promising_by_disagreeing_how_slow():
    time = Posterior(np.array([0.9, 0.1]), np.array([[0.0, 3.0], [0.0, 1.0]]), np.full((2, 2), 0.1))
    assert time.mean == pytest.approx([0.0, 2.8]) and time.deviation == pytest.approx([0.1, np.hypot(0.1, 0.6)])
    near, far = expected_gain(time, 0.05)
    assert far < 1e-12 < near
    assert faster_probability(time, 0.05, 1) < 1e-12 < 0.5 < faster_probability(time, 0.05, 0)


def test_a_loss_is_not_made_smaller_by_taking_longer():
    quick, slow = utility(np.array([1.0, 1.0]), np.array([0.9, 0.9]), np.array([1.0, 100.0]))
    assert slow < quick < 0


def test_the_minute_that_compiling_takes_counts_until_it_has_been_seen(pool):
    times, compiled = np.zeros(2), np.array([0.0, 1.0])
    plain, longer = TrialCost.from_history([]).seconds(times, compiled)
    assert longer == plain + 60.0
    config = ask(pool, []).config
    runs = [
        replace(complete(number, item), measurement=measured(100.0).model_copy(update={"elapsed_s": elapsed_s}))
        for number, (item, elapsed_s) in enumerate(
            [(config, 10.0), (config.model_copy(update={"compile": True}), 22.0)]
        )
    ]
    plain, longer = TrialCost.from_history(runs).seconds(times, compiled)
    assert longer - plain == pytest.approx(12.0)


def test_of_a_large_space_a_draw_and_the_neighbours_of_the_fastest_are_candidates():
    space = space_of(gpus(1, 4))
    some = next(iter(sample_evenly(space, 3)))
    near = list(neighbours(space, some))
    assert near and all(space.contains(config) for config in near)
    assert some not in near and len({config.content_key() for config in near}) == len(near)
    drawn = list(sample_evenly(space, 200))
    assert {config.backend for config in drawn} == {"ddp", "zero", "fsdp1", "fsdp2"}
    assert drawn == list(sample_evenly(space, 200))


def inputs(predicted_times, knob):
    knobs = np.array(knob, dtype=float)[:, None]
    shares = np.full((len(knob), 1), 1.0)
    same = np.zeros(len(knob), dtype=np.intp)
    return Inputs(knobs, knobs, same, same, shares, np.array(predicted_times, dtype=float))


@pytest.mark.parametrize(("sign", "low", "high"), [(1.0, 0.9, 1.0), (-1.0, 0.0, 0.3)])
def test_predictions_that_trials_contradict_lose_their_weight(sign, low, high):
    rng = np.random.default_rng(0)
    times = rng.normal(0, 0.5, 12)
    process = Residual(inputs(sign * times, rng.uniform(0, 1, 12)), times + rng.normal(0, 0.02, 12), np.zeros(12))
    assert low <= process.trust <= high


def test_the_process_reproduces_what_was_measured_and_is_unsure_elsewhere():
    rows = inputs([0.0, 0.0, 0.0], [0.0, 0.5, 1.0])
    process = Residual(rows, np.log([1.0, 1.5, 2.2]), np.zeros(3))
    near, far = process.posterior(rows, inputs([], [])), process.posterior(inputs([0.0], [5.0]), inputs([], []))
    assert near.mean == pytest.approx(np.log([1.0, 1.5, 2.2]), abs=0.05)
    assert far.deviation[0] > 2 * near.deviation.max()


def of_kinds(kinds, knob, study=0):
    rows = inputs([0.0] * len(kinds), knob)
    return replace(rows, kinds=np.array(kinds), studies=np.full(len(kinds), study))


def test_what_one_backend_shows_reaches_all_of_its_configurations():
    """Two trials of one kind are twice as fast as predicted, two of another as predicted; no knob of the next is like theirs."""
    process = Residual(of_kinds([0, 0, 1, 1], [0.0, 1.0, 0.0, 1.0]), np.array([-0.7, -0.7, 0.0, 0.0]), np.zeros(4))
    first, other = process.mean(of_kinds([0, 1], [40.0, 40.0]))
    assert first < other - 0.15


def test_another_study_on_the_machine_tells_what_the_prediction_misses_before_the_first_trial():
    there = of_kinds([0, 0, 1, 1], [0.0, 1.0, 0.0, 1.0], study=1)
    process = Residual(there, 3.0 + np.array([-0.7, -0.7, 0.0, 0.0]), np.full(4, 0.05))
    first, other = process.mean(of_kinds([0, 1], [0.0, 0.0]))
    assert first < other - 0.1
    # Its level is its own: trials here that show the contrary have the last word.
    both = concatenate(there, of_kinds([0, 1, 0, 1], [0.0, 0.0, 1.0, 1.0]))
    measured = np.concatenate([3.0 + np.array([-0.7, -0.7, 0.0, 0.0]), [0.5, 0.0, 0.5, 0.0]])
    here = Residual(both, measured, np.array([0.05] * 4 + [0.0] * 4))
    assert np.diff(here.mean(of_kinds([0, 1], [0.0, 0.0])))[0] < 0


def test_the_first_trial_is_of_the_backend_that_another_study_found_faster_than_predicted(pool):
    by_prediction = ask(pool, []).config
    others = [config for config in sample_evenly(pool.space, 60) if config.backend != by_prediction.backend][:6]
    compared = learning.compare(
        MeasuredTrials(
            pool.basis.shape,
            WORKLOAD,
            pool.basis.cluster,
            [*others, by_prediction],
            [
                *(measured(4.0 * float(predicted(pool, [config])[0])) for config in others),
                measured(float(predicted(pool, [by_prediction])[0])),
            ],
            study="another",
        )
    )
    knowledge = Knowledge(4.0, related=compared)
    proposal = next_config(pool.space, (), [], (), open_gate, 0, (), GuidedSampler(pool, knowledge))
    assert proposal.config.backend != by_prediction.backend


def test_where_what_is_fast_does_not_fit_the_first_trial_is_the_fastest_that_does(pool):
    rows = np.arange(pool.candidate_count)
    limit = float(np.quantile(pool.peak_gib[rows], 0.3))
    config = ask(pool, [], limit).config
    fits = [row for row in rows if pool.peak_gib[row] < 0.95 * limit]
    best = predicted(pool, [pool.config(int(row)) for row in fits]).max()
    assert predicted(pool, [config])[0] >= 0.9 * best
    (row,) = pool.rows([config])
    assert pool.peak_gib[row] < limit


def test_a_pending_trial_narrows_the_distribution_and_moves_nothing():
    rows, elsewhere = inputs([0.0, 0.0], [0.0, 1.0]), inputs([0.0], [4.0])
    process = Residual(rows, np.array([0.0, 0.3]), np.zeros(2))
    without, with_it = process.posterior(elsewhere, inputs([], [])), process.posterior(elsewhere, elsewhere)
    assert with_it.mean == pytest.approx(without.mean)
    assert with_it.deviation[0] < without.deviation[0]
