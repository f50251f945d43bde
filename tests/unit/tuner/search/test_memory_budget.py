"""Where a budget of activations is searched, and which configurations cannot have it."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, sample_groups
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.step_trace import TraceFailure
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.prediction.neighbours import neighbours
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import cpu, gpus, llama

WORKLOAD = Workload(sequence_length=64, global_batch=16)
SCRIPT = TraceFailure(code="script", message="a script runs its steps itself")


def space(
    backend: str = "ddp", cluster: Cluster | None = None, summary: dict[str, Any] | None = None, **knobs: Any
) -> Space:
    known = llama("llama-tiny").model_copy(update=summary or {})
    limits = SpaceLimits(backends=(backend,), knobs=knobs)  # type: ignore[arg-type]
    return build(WORKLOAD, cluster or gpus(1, 2), known, limits)


def budgets(searched: Space) -> set[tuple[float, bool, str]]:
    return {
        (config.activation_memory_budget, config.compile, config.activation_checkpointing)
        for config in searched.enumerate()
    }


def test_a_study_that_does_not_name_it_keeps_its_space() -> None:
    assert {budget for budget, _compiled, _mode in budgets(space())} == {1.0}


def test_whoever_names_it_gets_it_where_blocks_are_compiled_and_not_checkpointed() -> None:
    searched = budgets(space(activation_memory_budget=[1, 0.5, 0.25]))
    assert {(budget, compiled, mode) for budget, compiled, mode in searched if budget < 1} == {
        (0.5, True, "none"), (0.25, True, "none"),
    }  # fmt: skip
    assert {(1.0, False, "none"), (1.0, True, "none"), (1.0, False, "full"), (1.0, True, "selective")} <= searched


def test_limits_without_1_leave_only_configurations_that_can_have_it() -> None:
    assert budgets(space(activation_memory_budget=0.3)) == {(0.3, True, "none")}
    assert budgets(space(activation_memory_budget={"min": 0.25, "max": 0.35})) == {
        (budget, True, "none") for budget in (0.25, 0.3, 0.35)
    }
    pinned_off = budgets(space(activation_memory_budget=1))
    assert pinned_off == budgets(space())


def test_on_cpu_ranks_it_is_searched_where_compilation_is() -> None:
    named = {"activation_memory_budget": [1, 0.5]}
    assert {budget for budget, _compiled, _mode in budgets(space(cluster=cpu(2), **named))} == {1.0}
    compiled = budgets(space(cluster=cpu(2), compile=[True, False], **named))
    assert {budget for budget, _compiled, _mode in compiled} == {1.0, 0.5}


def test_zero_has_it_below_stage_3() -> None:
    searched = space("zero", activation_memory_budget=0.5)
    drawn = [searched.sample(lambda _name, values, at=at: values[at % len(values)]) for at in range(12)]
    stages = {config.strategy.stage for config in drawn if config is not None and config.backend == "zero"}  # type: ignore[union-attr]
    assert 3 not in stages and stages & {1, 2}


@pytest.mark.parametrize("backend", ["ddp", "zero", "fsdp1", "fsdp2"])
def test_a_sampler_never_draws_an_illegal_one(backend: str) -> None:
    named = space(backend, activation_memory_budget=[0.5])
    drawn = [named.sample(lambda _name, values, at=at: values[at]) for at in (-1, 0)]
    assert any(config is not None for config in drawn)
    assert all(config is None or config.activation_memory_budget == 0.5 for config in drawn)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"compile": False}, "activation_memory_budget below 1 needs it"),
        ({"activation_checkpointing": "full"}, "activation_memory_budget below 1 needs it"),
        ({"cluster": cpu(2)}, "it needs compile"),
        ({"summary": {"moe_class": "MoE", "experts": 8}}, "its blocks route tokens to experts"),
        ({"summary": {"moe_class": "MoE", "experts": 1}}, "its blocks route tokens to experts"),
        ({"summary": {"trace_failure": SCRIPT}}, "your own code may draw random numbers"),
        ({"backend": "zero", "stage": 3}, "no ZeRO stage 3"),
    ],
    ids=["eager", "checkpointed", "cpu", "experts", "indivisible experts", "script", "zero-3"],
)
def test_limits_that_contradict_it_say_why(others: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=rf"leaves nothing to search: .*{says}"):
        space(activation_memory_budget=0.5, **others)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"compile": False}, r"activation_memory_budget \(0.5\) is kept by the compiler, and compile \(false\) .*to 1"),
        ({"activation_checkpointing": "full"}, r"with activation_checkpointing \('full'\) .*to 'none'"),
        ({"activation_checkpointing": "selective"}, r"with activation_checkpointing \('selective'\) .*to 'none'"),
        (
            {"strategy": {"kind": "zero", "stage": 3}},
            r"activation_memory_budget \(0.5\) with stage \(3\) .*use stage 1",
        ),
        *(
            ({"activation_memory_budget": value}, "activation_memory_budget")
            for value in (0, -1, 0.04, 1.01, float("nan"), float("inf"), "0.5", True, None)
        ),
    ],
    ids=str,
)
def test_what_cannot_have_it_is_rejected_with_field_value_and_remedy(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrialConfig.model_validate(
            {"strategy": {"kind": "ddp"}, "compile": True, "activation_memory_budget": 0.5, **fields}
        )


@pytest.mark.parametrize(
    ("workload", "model", "says"),
    [
        ({}, ModelSpec(name="m", entry_point="own"), "your own code may draw random numbers"),
        ({"float8": "tensorwise"}, None, r"float8 \(tensorwise\) was not compared"),
        ({"adapter": {"kind": "lora", "rank": 4, "alpha": 8}}, None, r"adapter \(lora\) was not compared"),
        ({"adapter": {"kind": "last_layers", "layers": 2}}, None, r"adapter \(last_layers\) was not compared"),
    ],
    ids=["own code", "float8", "lora", "last layers"],
)
def test_a_training_with_which_it_was_not_compared_is_rejected(
    workload: dict[str, Any], model: ModelSpec | None, says: str
) -> None:
    config = TrialConfig(strategy=DdpConfig(), compile=True, activation_memory_budget=0.5)
    precision = PRECISIONS["bf16-mixed"]
    full = Workload.model_validate({"sequence_length": 64, "global_batch": 8, "precision": precision, **workload})
    with pytest.raises(
        ValueError, match=rf"activation_memory_budget \(0.5\) is not for this training: {says}.*; use 1"
    ):
        sample_groups.check(config, gpus(1, 2), full, model)


def test_models_with_experts_are_rejected_before_they_are_built() -> None:
    config = TrialConfig(strategy=DdpConfig(), compile=True, activation_memory_budget=0.5)
    with pytest.raises(ValueError, match=r"activation_memory_budget \(0.5\) .*experts.*; use 1"):
        sample_groups.check_experts(config, 8, 64, None)


def test_its_description_names_the_budget() -> None:
    config = TrialConfig(strategy=DdpConfig(), compile=True, activation_memory_budget=0.5)
    assert "compiled, activation budget 0.5, micro batch 1" in config.describe()
    assert "budget" not in config.without_compile().describe() and not config.without_compile().compile


def test_advice_to_checkpoint_takes_the_place_of_the_budget() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=2), compile=True, activation_memory_budget=0.5)
    modes = {
        (near.config.activation_checkpointing, near.config.activation_memory_budget)
        for near in neighbours(config, gpus(1, 2))
    }
    assert ("full", 1.0) in modes and all(budget == 1 or mode == "none" for mode, budget in modes)
