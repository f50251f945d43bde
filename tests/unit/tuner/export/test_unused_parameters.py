"""DDP looks for parameters without a gradient where a trial's traced step had some, in each exported file."""

import json

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.step_trace import Scaled, StepTrace, StepWork
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.export import accelerate, lightning, snippet
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trainer import training_arguments
from shardtune.tuner.search.space import build
from tests.support.values.synthetic_studies import contender_of, study_of
from tests.support.values.tuner_inputs import cpu, llama

_NONE = Scaled()
_AMOUNTS = ("peak", "outside", "block", "boundary", "selective", "working", "loss", "tail")
_WORK = {
    name: StepWork(matmul_flops=1, attention_flops=0, traffic=_NONE, kernels=1)
    for name in ("blocks_forward", "outside_forward", "backward")
}


def source_of(unused: int) -> ExportSource:
    amounts = dict.fromkeys(_AMOUNTS, _NONE)
    trace = StepTrace(
        sequence_length=8, compute_dtype="float32", samples=(2, 4), unused_parameters=unused, **amounts, **_WORK
    )
    summary = llama("llama-tiny").model_copy(update={"step_trace": trace})
    config = TrialConfig(strategy=DdpConfig(), micro_batch=2)
    return ExportSource(study_of("llama-tiny", "fp32", cpu(2), 8), contender_of(config), summary)


@pytest.mark.parametrize("unused", [0, 2])
def test_every_file_says_whether_ddp_looks_for_them(unused: int) -> None:
    source = source_of(unused)
    flag = "find_unused_parameters=True"
    assert (f"            {flag},\n" in snippet.source(source)) is bool(unused)
    assert (flag in accelerate.document(source)) is bool(unused)
    assert f"find_unused_parameters={bool(unused)}" in "".join(lightning.render(source).files.values())
    arguments = json.loads(training_arguments.render(source).files["training_arguments.json"])
    assert arguments["ddp_find_unused_parameters"] is bool(unused)
    assert source.task().leaves_parameters_unused is bool(unused)


@pytest.mark.parametrize("unused", [0, 2])
def test_a_static_graph_is_not_searched_with_them(unused: int) -> None:
    limits = SpaceLimits(backends=("ddp",), knobs={"micro_batch": 4, "activation_checkpointing": "none"})
    workload = Workload(sequence_length=8, global_batch=8)
    space = build(workload, cpu(2), source_of(unused).model_summary, limits)
    graphs = {config.strategy.static_graph for config in space.enumerate()}  # type: ignore[union-attr]
    assert graphs == ({False} if unused else {False, True})
