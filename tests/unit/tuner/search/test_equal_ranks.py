"""Configurations that the predictor cannot tell apart share a rank; levers say what would fit where nothing does."""

import pytest

from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.tuner.search import equal_ranks, levers
from shardtune.tuner.search.fastest import answer_request


def predicted(**fields: object) -> PredictionTable:
    return answer_request(PredictionRequest.model_validate({"model": "llama-3.1-8b", "cluster": "8xh100"} | fields))


@pytest.fixture(scope="module")
def table() -> PredictionTable:
    return predicted(sequence_length=8192)


def test_one_rank_is_equal_within_the_stated_error_and_another_verdict_is_another_rank(table: PredictionTable) -> None:
    assert table.equal_within == equal_ranks.EQUAL_WITHIN
    for number in {item.rank for item in table.fastest}:
        group = [item for item in table.fastest if item.rank == number]
        speeds = [item.speed.tokens_per_s_per_gpu for item in group if item.speed]
        assert min(speeds) >= max(speeds) * (1 - table.equal_within)
        assert len({item.memory.verdict for item in group}) == 1


def test_the_simplest_of_equals_comes_first(table: PredictionTable) -> None:
    group = [item.config for item in table.fastest if item.rank == 2]
    plain = [config.backend for config in group if config.activation_checkpointing == "none"]
    assert group[0].backend == "fsdp2" and plain.index("fsdp2") < plain.index("fsdp1")


def test_both_tables_have_one_batch_and_one_program(table: PredictionTable) -> None:
    assert table.strategies_global_batch == table.global_batch == 64
    assert {item.config.compile for item in table.predictions} == {table.strategies_compiled} == {True}
    eager = predicted(space=SpaceLimits(allow_compile=False), top=2)
    assert not any(item.config.compile for item in (*eager.fastest, *eager.predictions))


def test_accumulation_in_place_of_a_batch_holds_for_both_tables() -> None:
    answer = predicted(micro_batch=2, gradient_accumulation=3, top=1)
    assert (answer.global_batch, answer.strategies_global_batch) == (48, 48)
    with pytest.raises(ValueError, match=r"global_batch \(64\) is not what 8 ranks .* add up to \(48\)"):
        predicted(micro_batch=2, gradient_accumulation=3, global_batch=64)


def test_a_studys_limits_hold_in_both_tables() -> None:
    answer = predicted(space=SpaceLimits(backends=("zero",), knobs={"activation_checkpointing": "full"}), top=3)
    assert {item.config.backend for item in (*answer.fastest, *answer.predictions)} == {"zero"}
    assert {item.config.activation_checkpointing for item in answer.fastest} == {"full"}


def test_a_space_without_a_row_of_strategies_is_ranked() -> None:
    answer = predicted(space=SpaceLimits(backends=("fsdp1",)), top=1)
    assert answer.predictions == () and answer.fastest[0].config.backend == "fsdp1"


def test_where_nothing_fits_the_levers_that_would_are_named() -> None:
    on_device = SpaceLimits(knobs={"activation_offload": False, "mlp_slices": 1})
    answer = predicted(sequence_length=131_072, global_batch=8, space=on_device)
    assert not any(item.memory.verdict == "fits" for item in answer.fastest)
    assert answer.levers[0].startswith("drop the study's limits on activation_offload, mlp_slices (space)")
    assert answer.levers[1].startswith(
        'share each sequence among 2 ranks ("space": {"knobs": {"context_parallel": 2}})'
    )
    limited = predicted(sequence_length=8192, space=SpaceLimits(backends=("ddp",)))
    assert limited.levers[0].startswith("drop the study's limits on backends (space)")
    assert predicted(sequence_length=2048).levers == ()


def test_a_recipe_that_would_fit_is_the_last_remedy_and_trains_something_else() -> None:
    """Weights, gradients and states of 1.2 B parameters take 18 bytes each in bf16-mixed, 8 with stochastic rounding."""
    small = {"gpu": "NVIDIA H100 80GB HBM3", "gpus_per_node": 1, "memory_gib": 22, "host_memory_gib": 100}
    asked: dict[str, object] = {"model": "llama-3.2-1b", "cluster": small, "sequence_length": 1024, "global_batch": 8}
    asked["space"] = SpaceLimits(backends=("ddp",))
    stated = '{"optimizer": "adamw-bf16", "precision": "bf16-true"}'
    said = f'train something else, AdamW with stochastic rounding ("workload": {stated})'
    remedies = predicted(**asked).levers
    assert remedies[-1].startswith(f"{said}: DDP") and not any(line.startswith("train") for line in remedies[:-1])
    assert predicted(**asked, precision="bf16-true", optimizer="adamw-bf16").levers == ()


@pytest.mark.parametrize(("need_gib", "is_needed"), [(70.0, True), (30.0, False)])
def test_a_wide_band_alone_asks_for_no_lever(table: PredictionTable, need_gib: float, is_needed: bool) -> None:
    """A lever would not narrow it, and to seek one takes seconds."""
    doubtful = table.fastest[0].memory.model_copy(update={"verdict": "may fit", "total_gib": need_gib})
    rows = (table.fastest[0].model_copy(update={"memory": doubtful}),)
    assert levers.are_needed(rows, usable_gib=72.0) is is_needed
    assert levers.are_needed((), usable_gib=72.0)
