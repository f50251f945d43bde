"""`python -m benchmarks.hosts` measures spaces in which the network decides."""

from typing import get_args

import pytest

from benchmarks.host_faults.faults import ENGINE
from benchmarks.hosts.jobs import JOBS, layouts
from shardtune.api_schemas.machines.engines import EngineName
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import TINY

MODEL_SUMMARY = TINY.model_copy(update={"tensor_divisor": 4, "pipeline_blocks": 6})


def space_of(spec: StudySpec) -> Space:
    assert isinstance(spec.cluster, Cluster)
    return build(spec.workload, spec.cluster, MODEL_SUMMARY, spec.space)


def spec_of(job: str) -> StudySpec:
    cluster = Cluster(device="cpu", nodes=2, gpus_per_node=2, memory_gib=1, host_memory_gib=8)
    return StudySpec.model_validate(JOBS[job](2, 2) | {"cluster": cluster})


@pytest.mark.parametrize(("job", "count"), [("meshes", 7), ("layouts", 10)])
def test_no_two_candidates_look_alike(job: str, count: int) -> None:
    assert len({config.describe() for config in space_of(spec_of(job)).enumerate()}) == count


def test_layouts_have_tensor_parallelism_within_a_host_under_stages_and_over_both_hosts() -> None:
    spec = spec_of("layouts")
    strategies = [config.strategy for config in space_of(spec).enumerate()]
    fsdp2 = [strategy for strategy in strategies if isinstance(strategy, Fsdp2Config)]
    assert {(2, 2), (4, 1), (2, 1), (1, 2), (1, 1)} == {(layout.tensor_parallel, layout.stages) for layout in fsdp2}
    assert spec.budget.max_trials is not None and spec.budget.max_trials < len(strategies)


def test_heads_can_be_split_over_all_ranks() -> None:
    assert layouts(2, 4)["model"]["num_attention_heads"] == 8


def test_each_engine_has_faults_of_its_daemons() -> None:
    assert ENGINE.keys() == {*get_args(EngineName)}, "benchmarks/host_faults/faults.py: ENGINE"
