"""What a search may draw where DeepSpeed's DeepCompile was not compared with the other backends."""

from itertools import islice

import pytest

from shardtune.api_schemas.strategies.recipe_support import deepcompile_support
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search import space
from tests.support.values.tuner_inputs import TINY, gpus

PLAIN = {"sequence_length": 64, "global_batch": 16, "precision": PRECISIONS["bf16-mixed"]}
NOT_COMPARED = {
    "dora": {"adapter": "dora"},
    "qlora": {"adapter": "qlora"},
    "float8": {"float8": "tensorwise"},
    "fp16": {"precision": PRECISIONS["fp16-mixed"]},
    "lengths": {"data": {"lengths": [16, 64], "layout": "padded"}},
}
"""Settings of workloads that no trial with DeepCompile was compared for."""


@pytest.fixture(params=NOT_COMPARED)
def workload(request: pytest.FixtureRequest) -> Workload:
    return Workload.model_validate({**PLAIN, **NOT_COMPARED[request.param]})


def _space(workload: Workload, knobs: dict[str, object]) -> space.Space:
    limits = SpaceLimits.model_validate({"backends": ["zero"], "knobs": knobs})
    summary = TINY.model_copy(update={"tensor_divisor": 4, "pipeline_blocks": 4})
    return space.build(workload, gpus(), summary, limits)


def _compiles(workload: Workload) -> set[bool]:
    """Values of DeepCompile in every fiftieth of the first configurations of a search that may draw both."""
    drawn = _space(workload, {"deepcompile": [True, False], "stage": 2}).enumerate()
    return {getattr(config.strategy, "deepcompile", False) for config in islice(drawn, 0, 5_000, 50)}


def test_a_search_draws_it_only_where_it_was_compared(workload: Workload) -> None:
    assert _compiles(workload) == {False}


@pytest.mark.parametrize("adapter", [None, "lora"])
def test_it_is_drawn_for_other_workloads(adapter: str | None) -> None:
    assert _compiles(Workload.model_validate({**PLAIN, "adapter": adapter})) == {False, True}


def test_limits_that_leave_nothing_else_are_rejected(workload: Workload) -> None:
    words = r"space.knobs.deepcompile \(true\) cannot train with .*compared it; leave it out"
    with pytest.raises(ValueError, match=words):
        _space(workload, {"deepcompile": True})
    with pytest.raises(ValueError, match=words):
        deepcompile_support.check_limits({"deepcompile": True}, workload)
    deepcompile_support.check_limits({"deepcompile": (True, False)}, workload)
    deepcompile_support.check_limits({"deepcompile": True}, Workload.model_validate(PLAIN))


def test_limits_that_name_it_get_a_note(workload: Workload) -> None:
    both = {"deepcompile": (True, False), "stage": 2}
    (note,) = deepcompile_support.dropped_note(("zero",), both, workload)
    assert note.startswith("space.knobs.deepcompile (true) cannot train with") and note.endswith("it is not searched")
    assert deepcompile_support.dropped_note(("ddp",), both, workload) == ()
    assert deepcompile_support.dropped_note(("zero",), {}, workload) == ()
