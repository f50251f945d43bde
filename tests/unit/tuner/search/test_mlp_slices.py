"""Where MLPs in slices are searched, and which configurations cannot have them."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import TrialConfig, sample_groups
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import cpu, gpus, llama

LONG = Workload(sequence_length=131_072, global_batch=8)
SHORT = Workload(sequence_length=64, global_batch=16)
LORA = {"kind": "lora", "rank": 4, "alpha": 8}


def space(model: str, workload: Workload, backend: str = "ddp", note: str | None = None, **knobs: Any) -> Space:
    cluster = cpu(2) if workload.sequence_length == 64 else gpus()
    summary = llama(model).model_copy(update={"mlp_note": note})
    return build(workload, cluster, summary, SpaceLimits(backends=(backend,), knobs=knobs))  # type: ignore[arg-type]


def slices(searched: Space) -> set[tuple[int, bool]]:
    return {(config.mlp_slices, config.compile) for config in searched.enumerate()}


def test_an_mlp_over_many_tokens_is_tried_in_slices_without_compilation() -> None:
    assert slices(space("llama-3.1-8b", LONG)) == {(1, False), (1, True), (4, False), (16, False)}


@pytest.mark.parametrize("length", [512, 4096])
def test_shorter_sequences_keep_their_space(length: int) -> None:
    workload = Workload(sequence_length=length, global_batch=8)
    assert slices(space("llama-3.1-8b", workload)) == {(1, False), (1, True)}
    assert slices(space("llama-tiny", SHORT)) == {(1, False)}


def test_a_model_whose_mlp_is_not_found_is_not_tried_in_slices() -> None:
    assert slices(space("llama-3.1-8b", LONG, note="your own code computes the MLPs")) == {(1, False), (1, True)}


def test_whoever_names_it_gets_only_what_can_have_it() -> None:
    assert slices(space("llama-tiny", SHORT, mlp_slices=8)) == {(8, False)}
    assert slices(space("llama-tiny", SHORT, mlp_slices=[1, 2], compile=[True, False])) == {
        (1, True), (1, False), (2, False),
    }  # fmt: skip


def test_a_sampler_never_draws_an_illegal_one() -> None:
    named = space("llama-tiny", SHORT, "fsdp2", mlp_slices=4, tensor_parallel=[1, 2])
    drawn = [named.sample(lambda _name, values: values[-1]), named.sample(lambda _name, values: values[0])]
    assert any(config is not None for config in drawn)
    assert all(config is None or config.strategy.model_parallel == 1 for config in drawn)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"tensor_parallel": 2}, r"mlp_slices \(4\) leaves nothing to search: .*it needs tensor_parallel 1"),
        ({"pipeline_parallel": 2}, r"mlp_slices \(4\) leaves nothing to search: .*and pipeline_parallel 1"),
        ({"note": "its MLPs have experts"}, r"mlp_slices \(4\) leaves nothing to search: .*its MLPs have experts"),
    ],
    ids=["tensor", "stages", "model"],
)
def test_limits_that_contradict_it_say_why(other: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        space("llama-tiny", SHORT, "fsdp2", mlp_slices=4, **other)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"compile": True}, r"mlp_slices \(4\) with compile \(true\) .*set mlp_slices to 1, or compile to false"),
        (
            {"strategy": {"kind": "zero", "stage": 3, "deepcompile": True}},
            r"mlp_slices \(4\) with deepcompile \(true\)",
        ),
        (
            {"strategy": {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}},
            r"mlp_slices \(4\) with tensor_parallel \(2\) .*set one of them to 1",
        ),
        (
            {"strategy": {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}},
            r"mlp_slices \(4\) with pipeline_parallel \(2\) .*set one of them to 1",
        ),
        *(({"mlp_slices": value}, "mlp_slices") for value in (0, -1, 1025, 2.5, "4", True)),
    ],
    ids=str,
)
def test_what_cannot_have_it_is_rejected_with_field_value_and_remedy(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "mlp_slices": 4, **fields})


@pytest.mark.parametrize(
    ("strategy", "workload", "model", "says"),
    [
        ({"kind": "ddp"}, {}, ModelSpec(name="m", entry_point="own"), "your own code computes the MLPs"),
        ({"kind": "ddp"}, {"float8": "tensorwise"}, None, r"float8 \(tensorwise\) would take scales from a slice"),
        ({"kind": "ddp"}, {"adapter": LORA | {"dora": True}}, None, r"dora \(true\) would take"),
        (
            {"kind": "ddp"},
            {"adapter": LORA | {"quantization": "nf4"}},
            None,
            r"quantization \(nf4\) would unpack every weight once a slice",
        ),
        ({"kind": "fsdp1", "dp_shard": 2}, {"adapter": LORA}, None, "fsdp1 wraps LoRA's matrices"),
    ],
    ids=["own code", "float8", "dora", "quantised", "lora under fsdp1"],
)
def test_a_training_that_cannot_have_it_is_rejected_with_the_reason(
    strategy: dict[str, Any], workload: dict[str, Any], model: ModelSpec | None, says: str
) -> None:
    config = TrialConfig.model_validate({"strategy": strategy, "mlp_slices": 4})
    precision = PRECISIONS["bf16-mixed"]
    full = Workload.model_validate({"sequence_length": 64, "global_batch": 8, "precision": precision, **workload})
    with pytest.raises(ValueError, match=rf"mlp_slices \(4\) is not for this training: {says}.*; use 1"):
        sample_groups.check(config, cpu(2), full, model)


def test_models_with_experts_are_rejected_before_they_are_built() -> None:
    config = TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "mlp_slices": 4})
    with pytest.raises(ValueError, match=r"mlp_slices \(4\) .*its MLPs have experts.*; use 1"):
        sample_groups.check_experts(config, 8, 64, None)


def test_its_description_says_how_many_slices() -> None:
    config = TrialConfig.model_validate({"strategy": {"kind": "ddp"}, "mlp_slices": 4})
    assert "MLP in 4 slices, micro batch 1" in config.describe()
