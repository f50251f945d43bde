"""What a search may draw where DeepSpeed's DeepCompile was not compared with the other backends."""

import random
from collections.abc import Sequence
from itertools import islice

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies.recipe_support import deepcompile_support
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search import space
from tests.support.values.tuner_inputs import TINY, cpu, gpus

PLAIN = {"sequence_length": 64, "global_batch": 16, "precision": PRECISIONS["bf16-mixed"]}
NOT_COMPARED = {
    "dora": {"adapter": "dora"},
    "qlora": {"adapter": "qlora"},
    "float8": {"float8": "tensorwise"},
    "fp16": {"precision": PRECISIONS["fp16-mixed"]},
    "lengths": {"data": {"lengths": [16, 64], "layout": "padded"}},
}
"""Settings of workloads that no trial with DeepCompile was compared for."""
GPUS = gpus()


@pytest.fixture(params=NOT_COMPARED)
def workload(request: pytest.FixtureRequest) -> Workload:
    return Workload.model_validate({**PLAIN, **NOT_COMPARED[request.param]})


def _space(
    workload: Workload, knobs: dict[str, object], backends: Sequence[str] = ("zero",), cluster: Cluster = GPUS
) -> space.Space:
    limits = SpaceLimits.model_validate({"backends": backends, "knobs": knobs})
    summary = TINY.model_copy(update={"tensor_divisor": 4, "pipeline_blocks": 4})
    return space.build(workload, cluster, summary, limits)


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


@pytest.mark.parametrize("value", [1, "true", [], {"min": 0}, [True, 1]])
def test_what_is_no_value_of_the_knob_is_rejected_as_such(workload: Workload, value: object) -> None:
    with pytest.raises(ValueError, match=r"space.knobs.deepcompile \(.*true or false"):
        _space(workload, {"deepcompile": value})


@pytest.mark.parametrize("value", [True, [True]])
@pytest.mark.parametrize(
    "beside", [{}, {"compile": [False, True]}, {"loss": ["full", "chunked"]}, {"context_parallel": [1, 2]}]
)
def test_a_search_that_demands_it_draws_it_in_every_configuration(value: object, beside: dict[str, object]) -> None:
    search = _space(Workload.model_validate(PLAIN), {"deepcompile": value, **beside})
    rng = random.Random(1)
    drawn = [search.sample(lambda _, values: rng.choice(values)) for _ in range(40)]
    assert all(config is not None and getattr(config.strategy, "deepcompile", False) for config in drawn)


@pytest.mark.parametrize("backends", [["zero"], ["zero", "ddp"]])
@pytest.mark.parametrize(
    ("beside", "cluster", "why"),
    [
        ({}, cpu(), "it needs GPUs"),
        ({"compile": True}, gpus(), r"compile \(True\) excludes it"),
        ({"loss": "chunked"}, gpus(), r"loss \(chunked\) excludes it"),
        ({"context_parallel": 2}, gpus(), r"context_parallel \(2\) excludes it"),
    ],
)
def test_limits_that_demand_it_where_it_cannot_run_are_rejected(
    backends: list[str], beside: dict[str, object], cluster: Cluster, why: str
) -> None:
    words = rf"space.knobs.deepcompile \(True\) leaves nothing to search: the values here are false; .*{why}"
    with pytest.raises(ValueError, match=words):
        _space(Workload.model_validate(PLAIN), {"deepcompile": True, **beside}, backends, cluster)


@pytest.mark.parametrize("axis", ["context_parallel", "tensor_parallel", "pipeline_parallel"])
def test_a_search_that_demands_compilation_draws_no_ranks_that_share(axis: str) -> None:
    """Ranks that share a sample or a model do not compile."""
    workload, both = Workload.model_validate(PLAIN), ["fsdp2", "ddp"]
    search, rng = _space(workload, {"compile": True, axis: [1, 2]}, both), random.Random(1)
    drawn = [search.sample(lambda _, values: rng.choice(values)) for _ in range(40)]
    assert all(config is not None and config.compile and config.sharing == 1 for config in drawn)
    with pytest.raises(ValueError, match=rf"space.knobs.{axis} \(2\) leaves nothing .*compile \(true\) excludes it"):
        _space(workload, {"compile": True, axis: 2}, both)


def test_limits_that_name_it_get_a_note(workload: Workload) -> None:
    both = {"deepcompile": (True, False), "stage": 2}
    (note,) = deepcompile_support.dropped_note(("zero",), both, workload)
    assert note.startswith("space.knobs.deepcompile (true) cannot train with") and note.endswith("it is not searched")
    assert deepcompile_support.dropped_note(("ddp",), both, workload) == ()
    assert deepcompile_support.dropped_note(("zero",), {}, workload) == ()
