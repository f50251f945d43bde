"""What a search may draw for a workload with an adapter."""

import pytest

from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search import space
from tests.support.values.tuner_inputs import TINY, gpus

WORKLOAD = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"], adapter="lora")
SIZES = {"tensor_parallel": [1, 2], "pipeline_parallel": [1, 2]}


def test_no_mesh_that_cannot_train_an_adapter_is_drawn() -> None:
    limits = SpaceLimits.model_validate({"knobs": SIZES, "backends": ["fsdp2"]})
    plain = WORKLOAD.model_copy(update={"adapter": None})
    drawn = {
        bool(workload.adapter): {config.strategy.model_parallel for config in _space(workload, limits).lightest()}
        for workload in (plain, WORKLOAD)
    }
    assert drawn[False] > {1} and drawn[True] == {1}


def test_a_limit_that_only_allows_such_a_mesh_is_rejected_with_the_reason() -> None:
    limits = SpaceLimits.model_validate({"knobs": {"tensor_parallel": 2}, "backends": ["fsdp2"]})
    with pytest.raises(ValueError, match=r"space.knobs.tensor_parallel \(2\) leaves nothing to search.*adapter"):
        _space(WORKLOAD, limits)


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_compiled_blocks_are_drawn_beside_4_bit_weights_where_they_compile_as_wholes(backend: str) -> None:
    limits = SpaceLimits.model_validate({"backends": [backend], "allow_compile": True})
    drawn = {}
    for adapter in ("lora", "qlora"):
        workload = Workload.model_validate({**dict(WORKLOAD), "adapter": adapter})
        drawn[adapter] = {config.compile for config in _space(workload, limits).enumerate()}
    assert drawn == {"lora": {False, True}, "qlora": {False, True} if backend == "ddp" else {False}}


def test_a_limit_that_only_allows_compiled_blocks_beside_4_bit_weights_is_rejected_under_fsdp2() -> None:
    workload = Workload.model_validate({**dict(WORKLOAD), "adapter": "qlora"})
    limits = SpaceLimits.model_validate({"knobs": {"compile": True}, "backends": ["fsdp2"]})
    with pytest.raises(ValueError, match=r"space.knobs.compile \(True\) leaves nothing to search.*graph breaks"):
        _space(workload, limits)
    both = limits.model_copy(update={"backends": ("ddp", "fsdp2")})
    assert {(config.backend, config.compile) for config in _space(workload, both).enumerate()} == {("ddp", True)}


def _space(workload: Workload, limits: SpaceLimits) -> space.Space:
    summary = TINY.model_copy(update={"tensor_divisor": 4, "pipeline_blocks": 4})
    return space.build(workload, gpus(), summary, limits)
