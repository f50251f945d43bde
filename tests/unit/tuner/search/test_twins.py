"""Twins: configurations whose difference cannot matter at a model's size count as one candidate of the search."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.prediction.calibration import PARTS
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.guided_sampler.candidate_scores import CandidateScores
from shardtune.tuner.search.guided_sampler.knowledge import Knowledge
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictedRows, PredictionBasis, predict_rows
from shardtune.tuner.search.guided_sampler.sampler import GuidedSampler
from shardtune.tuner.search.guided_sampler.twins import Twins, before_second_twins, first_of_backends
from shardtune.tuner.search.samplers.draw import SearchView
from shardtune.tuner.search.space.backends.registry import BACKENDS, KNOBS
from shardtune.tuner.search.space.flat import flatten
from shardtune.tuner.search.suggest import next_config
from tests.support.values.tuner_inputs import WORKLOAD, complete, cpu, infeasible, open_gate, shape, space_of

LIMIT_GIB = 4.0


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool(space_of(cpu()), PredictionBasis(shape("llama-tiny"), WORKLOAD, cpu()))


def relation(pool: Pool, sure_gib: float = LIMIT_GIB) -> Twins:
    return Twins(pool, lambda rows: pool.parts[rows], sure_gib)


def are_twins(pool: Pool, first: TrialConfig, second: TrialConfig, sure_gib: float = LIMIT_GIB) -> bool:
    rows = np.array(pool.rows([first]), dtype=np.intp)
    return bool(relation(pool, sure_gib).with_twin_among(rows, np.array(pool.rows([second]), dtype=np.intp)))


def ddp(micro_batch: int = 8, **fields: object) -> TrialConfig:
    return TrialConfig(strategy=DdpConfig(**fields), micro_batch=micro_batch)


def zero(stage: int = 1, **fields: object) -> TrialConfig:
    return TrialConfig(strategy=ZeroConfig(stage=stage, **fields), micro_batch=8)


def search(pool: Pool, trials: int, surprise: dict[str, float]) -> list[TrialConfig]:
    """Configurations of a search in which each backend takes `surprise` times its predicted seconds."""
    history, configs = [], list[TrialConfig]()
    for number in range(trials):
        sampler = GuidedSampler(pool, Knowledge(LIMIT_GIB))
        config = next_config(pool.space, (), history, (), open_gate, 0, (), sampler).config
        (row,) = pool.rows([config])
        speed = 1.0 / float(pool.parts[row].sum()) / surprise.get(config.backend, 1.0)
        history.append(complete(number, config, speed))
        configs.append(config)
    return configs


def test_a_bucket_larger_than_the_model_is_a_twin_of_the_model_whole(pool: Pool) -> None:
    whole = shape("llama-tiny").parameters
    assert are_twins(pool, zero(allgather_bucket_size=500_000_000), zero(allgather_bucket_size=whole + whole % 2))
    assert are_twins(pool, ddp(bucket_cap_mb=25), ddp(bucket_cap_mb=4096))


def test_a_knob_that_changes_the_predicted_step_makes_no_twins(pool: Pool) -> None:
    """On links so slow that a step is nothing but communication, the calls that small buckets add count."""
    slow_links = Twins(pool, lambda rows: pool.parts[rows][:, [PARTS.index("communication")]], LIMIT_GIB)
    small, large = (pool.rows([ddp(bucket_cap_mb=mib)]) for mib in (1, 25))
    assert not slow_links.with_twin_among(np.array(small, dtype=np.intp), np.array(large, dtype=np.intp))


@pytest.mark.parametrize("other", [ddp(micro_batch=4), ddp().model_copy(update={"malloc": "keep"}), zero()])
def test_configurations_that_differ_in_another_knob_are_no_twins_however_equal_their_prediction(
    pool: Pool, other: TrialConfig
) -> None:
    constant = Twins(pool, lambda rows: np.ones((len(rows), 1)), LIMIT_GIB)
    rows, tried = (np.array(pool.rows([config]), dtype=np.intp) for config in (other, ddp()))
    assert not constant.with_twin_among(rows, tried)


def test_buckets_whose_memory_decides_whether_they_fit_are_no_twins(pool: Pool) -> None:
    constant = Twins(pool, lambda rows: np.ones((len(rows), 1)), LIMIT_GIB)
    family = max(range(pool.families.max() + 1), key=lambda code: np.ptp(pool.peak_gib[pool.families == code]))
    rows = np.flatnonzero(pool.families == family)
    small, large = rows[[np.argmin(pool.peak_gib[rows])]], rows[[np.argmax(pool.peak_gib[rows])]]
    assert pool.peak_gib[large] > 1.05 * pool.peak_gib[small]
    assert constant.with_twin_among(small, large)
    assert not replace(constant, sure_gib=float(pool.peak_gib[small[0]])).with_twin_among(small, large)


def test_knobs_whose_effect_nobody_knows_make_no_twins() -> None:
    """The predictor has no term for these, which says nothing about what they do."""
    unknown = {
        "deepcompile",
        "forward_prefetch",
        "backward_prefetch",
        "limit_all_gathers",
        "pin_memory",
        "overlap_comm",
    }
    makers = {name for name, knob in KNOBS.items() if knob.makes_twins}
    assert makers and not makers & unknown
    assert not any(KNOBS[name].places_states for name in makers)


@pytest.fixture(scope="module")
def uneven_pool() -> Pool:
    """Pool in which FSDP1 and FSDP2 are predicted to be half as fast as on their own hardware."""
    basis = PredictionBasis(shape("llama-tiny"), WORKLOAD, cpu())

    def predict(configs: Sequence[TrialConfig]) -> PredictedRows:
        rows = predict_rows(basis, configs)
        slower = np.array([2.0 if config.backend.startswith("fsdp") else 1.0 for config in configs])
        return replace(rows, parts=rows.parts * slower[:, None])

    return Pool(space_of(cpu()), basis, predict=predict)


@pytest.mark.parametrize("surprise", [{}, {"zero": 0.6}, {"ddp": 0.6}])
def test_each_backend_is_tried_once_before_a_second_twin(uneven_pool: Pool, surprise: dict[str, float]) -> None:
    configs = search(uneven_pool, 10, surprise)
    for number, config in enumerate(configs):
        if any(are_twins(uneven_pool, config, other) for other in configs[:number]):
            assert {other.backend for other in configs[:number]} == set(BACKENDS)


def test_of_twins_the_one_with_the_documented_defaults_is_tried_until_every_backend_ran(pool: Pool) -> None:
    configs = search(pool, 8, {})
    complete_at = next(n for n in range(8) if {config.backend for config in configs[: n + 1]} == set(BACKENDS))
    for config in configs[: complete_at + 1]:
        (row,) = pool.rows([config])
        assert relation(pool).with_defaults(row, {pool.space.key(config)}) == row
        table = flatten(config)
        if config.backend == "ddp":
            assert (table["gradient_as_bucket_view"], table["static_graph"]) == (False, False)
        if config.backend == "zero":
            assert (table["contiguous_gradients"], table.get("round_robin_gradients")) == (True, False)


def test_a_limit_of_the_user_that_excludes_the_default_is_kept() -> None:
    limits = SpaceLimits(backends=("ddp",), knobs={"gradient_as_bucket_view": True})
    limited = Pool(space_of(cpu(), limits), PredictionBasis(shape("llama-tiny"), WORKLOAD, cpu()))
    assert all(config.strategy.gradient_as_bucket_view for config in search(limited, 4, {}))


def test_a_backend_that_failed_was_tried(pool: Pool) -> None:
    """One failure of each backend: the search goes on by utility, and a cancelled trial is none."""
    failed = [
        infeasible(number, TrialConfig(strategy=backend.defaults(cpu())[0]))
        for number, backend in enumerate(BACKENDS.values())
    ]
    sampler = GuidedSampler(pool, Knowledge(LIMIT_GIB))

    def backend_after(history: list) -> str:
        return next_config(pool.space, (), history, (), open_gate, 0, (), sampler).config.backend

    twin_first = [complete(9, config, 1000.0) for config in search(pool, 1, {})]
    assert backend_after([*twin_first, *failed]) in BACKENDS
    cancelled = [replace(obs, state=TrialState.CANCELLED, failure=None) for obs in failed]
    assert backend_after([*twin_first, *cancelled]) == backend_after(twin_first)


def test_a_backend_that_another_study_on_the_machine_tried_is_known(uneven_pool: Pool) -> None:
    """A later study spends no trial on a backend only because it is the first of this study."""
    rows = [uneven_pool.backends.index(backend) for backend in ("fsdp1", "fsdp2")]
    related = [
        ComparedRun("another", uneven_pool.config(row), True, None, {1.0: dict.fromkeys(PARTS, 0.1)}, 1.0)
        for row in rows
    ]

    def untried_backends(known: Sequence[ComparedRun]) -> set[str]:
        view = SearchView(uneven_pool.space, (), (), (), 0)
        scores = CandidateScores(uneven_pool, Knowledge(LIMIT_GIB, related=known), view)
        return {uneven_pool.backends[int(scores.candidates[index])] for index in scores.untried}

    assert untried_backends(()) == set(BACKENDS)
    assert untried_backends(related) == {"ddp", "zero"}


def test_untried_backends_come_just_before_the_first_second_twin() -> None:
    assert list(before_second_twins([0, 1, 2, 3], [3], {1, 2})) == [0, 3, 1, 2, 3]
    assert list(before_second_twins([0, 1], [1], ())) == [0, 1, 1]
    assert list(before_second_twins([0, 1], [], {0})) == [0, 1]


def test_the_first_row_of_each_untried_backend_is_found() -> None:
    order = np.array([3, 0, 2, 1], dtype=np.intp)
    assert sorted(first_of_backends(order, ["ddp", "zero", "zero", "ddp"], {"ddp"})) == [2]
