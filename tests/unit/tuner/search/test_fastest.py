"""The first lines of `predict`: the fastest configurations of the whole space that should fit."""

from itertools import combinations, islice, pairwise
from typing import Any

import numpy as np
import pytest

from shardtune.api_schemas.training.models import BlockSummary, ModelSpec, ModelSummary, preset
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest
from shardtune.tuner.prediction import predict, prediction_request, traced_shape
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS
from shardtune.tuner.prediction.shapes.config_shape import NoClosedForm, from_config
from shardtune.tuner.search import fastest, space
from shardtune.tuner.search.guided_sampler.pool import Pool, sample_evenly
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictionBasis

LARGE = PredictionRequest(model="llama-2-70b", cluster="64xh100", top=3)


def test_70b_on_64_gpus_has_fast_configurations_that_fit_and_none_drawn_at_random_is_faster() -> None:
    table = fastest.answer_request(LARGE)
    speeds = [config.speed.tokens_per_s_per_gpu for config in table.fastest if config.speed]
    assert len(speeds) == 3
    assert "does not fit" not in {config.memory.verdict for config in table.fastest}
    assert all(config.memory.total_gib <= 0.95 * table.cluster.memory_gib for config in table.fastest)
    assert len({config.description for config in table.fastest}) == 3
    about = prediction_request.resolve(LARGE)
    workload = about.workload(512)
    drawn = space.build(workload, about.cluster, traced_shape.summary_of(about.shape), SpaceLimits())
    pool = Pool(drawn, PredictionBasis(about.shape, workload, about.cluster), islice(sample_evenly(drawn, 300), 300))
    fits = (pool.peak_gib <= 0.95 * about.cluster.memory_gib) & (pool.host_gib <= about.cluster.host_memory_gib)
    best = workload.tokens_per_step / about.cluster.world_size / np.where(fits, pool.parts.sum(1), np.inf).min()
    assert best < 1.001 * max(speeds)


@pytest.mark.parametrize(
    ("model", "cluster"), [("llama-2-70b", "64xh100"), ("llama-2-7b", "8xh100"), ("gpt2", "1xh100")]
)
def test_what_surely_fits_comes_before_what_may_and_each_the_fastest_first(model: str, cluster: str) -> None:
    actual_fastest = fastest.answer_request(PredictionRequest(model=model, cluster=cluster, top=3)).fastest
    assert actual_fastest[0].memory.verdict == "fits"
    ranks = [(row.memory.verdict != "fits", row.rank) for row in actual_fastest]
    assert ranks == sorted(ranks) and len(ranks) == 3
    # Of one rank the simplest comes first, and may be slower than the next by what the predictor cannot tell.
    for row, later in combinations(actual_fastest, 2):
        assert row.speed is not None and later.speed is not None
        assert (
            row.memory.verdict != later.memory.verdict
            or row.speed.tokens_per_s_per_gpu >= later.speed.tokens_per_s_per_gpu
            or row.rank == later.rank
        )


def test_what_was_asked_before_is_not_predicted_anew() -> None:
    """A form asks after every key, and its page is read again."""
    first, before = fastest.answer_request(LARGE), predict._predict_together.cache_info()
    assert fastest.answer_request(LARGE) == first
    after = predict._predict_together.cache_info()
    assert after.misses == before.misses and after.hits > before.hits


def test_where_nothing_fits_nothing_is_fastest() -> None:
    assert fastest.answer_request(PredictionRequest(model="llama-2-70b", cluster="1xh100")).fastest == ()


def test_a_long_context_whose_mlps_fit_in_slices_alone_is_answered_with_them() -> None:
    """The search starts from whole MLPs, of which none fits here."""

    def answer(**knobs: object) -> tuple[Prediction, ...]:
        space = {"backends": ["fsdp2"], "knobs": knobs}
        fields = {"model": "llama-3.1-70b", "cluster": "4x8xh100", "sequence_length": 131_072, "global_batch": 32}
        request = PredictionRequest.model_validate(fields | {"precision": "bf16-mixed", "space": space})
        return fastest.fastest_configs(prediction_request.resolve(request), NO_CALIBRATIONS, 3)

    assert answer(mlp_slices=1) == ()
    rows = answer()
    assert rows and rows[0].memory.verdict == "fits"
    assert all(row.config.mlp_slices > 1 for row in rows)


def test_what_is_far_too_large_is_not_sought_among_compiled_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    outlines = []
    outline = fastest._outline_configs

    def recorded(space: Any, *, is_compiled: bool = False) -> Any:
        outlines.append(is_compiled)
        return outline(space, is_compiled=is_compiled)

    monkeypatch.setattr(fastest, "_outline_configs", recorded)
    fastest._rank_configs.cache_clear()
    far_too_large = PredictionRequest(model="llama-3.1-405b", cluster="8xh100", sequence_length=4096)
    resolved = prediction_request.resolve(far_too_large)
    assert fastest.fastest_configs(resolved, NO_CALIBRATIONS, 1) == ()
    assert outlines and not any(outlines)


def test_where_only_compiled_blocks_fit_they_are_the_answer() -> None:
    """Inputs of the blocks fit neither the GPUs beside eager blocks' whole MLPs, nor this small host."""
    small_host = {"gpu": "H100", "nodes": 1, "gpus_per_node": 8, "memory_gib": 80, "host_memory_gib": 48}
    request = {"model": "llama-3.1-8b", "cluster": small_host, "sequence_length": 122_880, "global_batch": 8, "top": 1}
    limits = {"backends": ["fsdp2"], "knobs": {"loss": ["chunked", "full"], "mlp_slices": 1}}
    (first,) = fastest.answer_request(PredictionRequest.model_validate(request | {"space": limits})).fastest
    assert first.config.compile and first.config.loss == "chunked"


def test_configurations_that_were_given_are_all_that_is_answered() -> None:
    config = fastest.answer_request(LARGE).fastest[0].config
    assert fastest.answer_request(LARGE.model_copy(update={"configs": (config,), "top": None})).fastest == ()


def test_a_batch_that_the_ranks_do_not_divide_is_named() -> None:
    with pytest.raises(ValueError, match=r"global_batch \(100\) must be a multiple"):
        fastest.answer_request(LARGE.model_copy(update={"global_batch": 100}))


def test_what_no_trial_could_train_is_not_predicted_either() -> None:
    heads = {**preset("llama-tiny").config, "num_attention_heads": 7}
    for config, says in ((heads, r"multiple of num_attention_heads \(7\)"), ({"model_type": "vit"}, "vision model")):
        with pytest.raises(ValueError, match=says):
            fastest.answer_request(LARGE.model_copy(update={"model": ModelSpec(name="x", config=config)}))


def test_an_architecture_without_closed_form_is_predicted_by_its_profile() -> None:
    """Counts come from `predict --trace` or a worker; without one, the remedy is named."""
    recorded_from_config = from_config(preset("llama-3.2-1b").config)
    block = BlockSummary(
        name="layers.0",
        parameters=recorded_from_config.block_parameters,
        largest_parameter=recorded_from_config.largest_parameter,
        forward_flops_per_token=1e8,
    )
    model_summary = ModelSummary(
        parameters=recorded_from_config.parameters,
        active_parameters=recorded_from_config.parameters,
        blocks=(block,) * recorded_from_config.layers,
        block_class="Layer",
        forward_flops_per_token=2e9,
        hidden_size=recorded_from_config.hidden,
        vocab_size=recorded_from_config.vocab,
        max_positions=2048,
    )
    asks = PredictionRequest(model=ModelSpec(name="other", config={"model_type": "olmo2"}), cluster="8xh100", top=1)
    with pytest.raises(NoClosedForm, match="shardtune predict CONFIG --trace"):
        fastest.answer_request(asks)
    table = fastest.answer_request(asks.model_copy(update={"model_summary": model_summary}))
    assert table.sequence_length == 2048 and table.parameters == recorded_from_config.parameters
    assert table.fastest[0].speed is not None and "which is a guess" in table.notes[0]
    uncounted = model_summary.model_copy(
        update={"forward_flops_per_token": None, "note": "no values on the meta device"}
    )
    with pytest.raises(ValueError, match="no values on the meta device"):
        fastest.answer_request(asks.model_copy(update={"model_summary": uncounted}))


def test_a_cluster_of_many_divisors_is_searched_among_some_of_them() -> None:
    """73,920 has 112 divisors: as many sizes of a shard, and of tensor and pipeline groups for each."""
    large = prediction_request.resolve(PredictionRequest(model="llama-3.1-8b", cluster="9240x8xh100"))
    workload = large.workload(large.global_batch)
    summary = traced_shape.summary_of(large.shape)
    outlined = islice(fastest._outline_configs(space.build(workload, large.cluster, summary, SpaceLimits())), 20_000)
    assert 1_000 < len(list(outlined)) < 10_000


def test_values_are_spread_over_all_of_them_with_both_ends() -> None:
    assert space.choices.spread((1, 2, 4, 8), 4) == (1, 2, 4, 8)
    chosen = space.choices.spread(tuple(range(100)), 24)
    assert len(chosen) == len(set(chosen)) == 24 and (chosen[0], chosen[-1]) == (0, 99)
    gaps = {after - before for before, after in pairwise(chosen)}
    assert gaps <= {4, 5}


def test_a_cluster_beyond_the_largest_number_of_ranks_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"cluster \('99999x8xh100'\) must have at most 100000 GPUs; name fewer nodes"):
        fastest.answer_request(PredictionRequest(model="gpt2", cluster="99999x8xh100"))
    spelt = {"gpu": "H100", "nodes": 100_000, "gpus_per_node": 8, "memory_gib": 80, "host_memory_gib": 100}
    with pytest.raises(ValueError, match=r"gpus_per_node \(8\) × nodes \(100000\) must be at most 100000 ranks"):
        PredictionRequest.model_validate({"model": "gpt2", "cluster": spelt})


@pytest.mark.parametrize(
    ("model", "cluster"), [("llama-3.2-1b", "8xh100"), ("gpt2", "2xh100"), ("llama-3.1-8b", "8xh100")]
)
def test_the_first_configuration_is_the_same_however_many_are_asked_for(model: str, cluster: str) -> None:
    values = {"model": preset(model), "cluster": cluster, "sequence_length": 1024}
    tables = [
        fastest.answer_request(PredictionRequest.model_validate({**values, "top": top})).fastest
        for top in (1, 3, 10, 30)
    ]
    assert [len(table) for table in tables] == [1, 3, 10, 30]
    assert len({table[0].config for table in tables}) == 1
    assert tables[1] == tables[2][:3]
    assert all(table[0].rank == 1 for table in tables)
