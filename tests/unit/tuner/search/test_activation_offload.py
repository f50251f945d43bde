"""Where blocks' inputs in host memory are searched, which configurations cannot have them, and what they would make fit."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.tuner.search.fastest import answer_request
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import cpu, gpus, llama

LONG = Workload(sequence_length=32_768, global_batch=16)
SHORT = Workload(sequence_length=64, global_batch=16)
FULL = {"activation_checkpointing": "full", "activation_offload": True}


def space(model: str, workload: Workload, backend: str = "ddp", **knobs: Any) -> Space:
    cluster = cpu(2) if workload is SHORT else gpus()
    return build(workload, cluster, llama(model), SpaceLimits(backends=(backend,), knobs=knobs))  # type: ignore[arg-type]


def offloads(searched: Space) -> set[tuple[str, bool, bool]]:
    return {
        (config.activation_checkpointing, config.compile, config.activation_offload)
        for config in searched.enumerate(lambda question: question.values[-2:])
        if config.activation_offload
    }


def test_long_sequences_are_tried_with_inputs_in_host_memory() -> None:
    assert offloads(space("llama-3.1-8b", LONG)) == {("full", False, True)}


def test_a_small_model_keeps_its_space() -> None:
    assert offloads(space("llama-tiny", SHORT)) == set()
    assert offloads(space("llama-3.1-8b", Workload(sequence_length=512, global_batch=16), micro_batch=1)) == set()


def test_whoever_names_it_gets_only_what_can_have_it() -> None:
    configs = list(space("llama-tiny", SHORT, activation_offload=True).enumerate())
    assert configs and all(
        config.activation_offload and config.activation_checkpointing == "full" and not config.compile
        for config in configs
    )


def test_a_sampler_never_draws_an_illegal_one() -> None:
    named = space("llama-tiny", SHORT, "fsdp2", activation_offload=True, pipeline_parallel=[1, 2])
    drawn = [named.sample(lambda _name, values: values[-1]), named.sample(lambda _name, values: values[0])]
    assert any(config is not None for config in drawn)
    assert all(config is None or config.strategy.stages == 1 for config in drawn)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            {"activation_checkpointing": "none"},
            r"activation_checkpointing \('none'\) .* full; .*activation_offload \(true\) needs it",
        ),
        (
            {"pipeline_parallel": 2},
            r"activation_offload \(True\) leaves nothing to search: .*it needs full checkpointing, without compilation or stages",
        ),
    ],
    ids=["checkpointing", "stages"],
)
def test_limits_that_contradict_it_say_why(other: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        space("llama-tiny", SHORT, "fsdp2", activation_offload=True, **other)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"activation_checkpointing": "none"},
            r"activation_checkpointing \('none'\) keeps .*; set activation_checkpointing to 'full'",
        ),
        ({"activation_checkpointing": "selective"}, r"activation_checkpointing \('selective'\) keeps .*; use 'full'"),
        ({"compile": True}, r"activation_offload \(true\) with compile \(true\)"),
        (
            {"strategy": {"kind": "zero", "stage": 3, "deepcompile": True}},
            r"activation_offload \(true\) with deepcompile \(true\)",
        ),
        (
            {"strategy": {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}},
            r"pipeline_parallel \(2\) does not keep.* to 1",
        ),
        ({"activation_offload": "yes"}, "activation_offload"),
        ({"activation_offload": 1}, "activation_offload"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_have_it_is_rejected_with_field_value_and_remedy(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrialConfig.model_validate({"strategy": {"kind": "ddp"}, **FULL, **fields})


def test_its_description_says_where_inputs_are() -> None:
    config = TrialConfig.model_validate({"strategy": {"kind": "ddp"}, **FULL})
    assert "full checkpointing, blocks' inputs in host memory, micro batch 1" in config.describe()


def predicted(**fields: object) -> PredictionTable:
    return answer_request(PredictionRequest.model_validate({"model": "llama-3.1-8b", "cluster": "8xh100"} | fields))


def test_a_long_context_that_only_fits_so_is_answered_with_it() -> None:
    table = predicted(sequence_length=131_072, global_batch=8, top=3)
    assert table.fastest and table.fastest[0].memory.verdict == "fits"
    assert any(item.config.activation_offload for item in table.fastest)


def test_where_limits_rule_it_out_it_is_named_as_what_would_fit() -> None:
    knobs = {"activation_offload": False, "tensor_parallel": 1, "mlp_slices": 1}
    table = predicted(sequence_length=131_072, global_batch=8, top=3, space={"backends": ["fsdp2"], "knobs": knobs})
    assert any("activation_offload" in lever and "host memory" in lever for lever in table.levers), table.levers
