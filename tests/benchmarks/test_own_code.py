"""A traced step of own code: its peak is the measured one, and what cannot be traced names a coded reason."""

import functools
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.own_code import entries
from benchmarks.own_code import plain_models as plain
from benchmarks.own_code.__main__ import compare, measured_peak, workload
from benchmarks.own_code.scripts import SCRIPTS
from shardtune.api_schemas.training.step_trace import StepTrace
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.workers.rank.own_code import trace_step

BY_NAME = {script.name: script for script in SCRIPTS}
TASK = workload(BY_NAME["nanogpt"])


@functools.cache
def trace_in_fp32() -> StepTrace:
    """Trace of nanoGPT's step, made once."""
    return trace_step.trace(BY_NAME["nanogpt"], TASK)


@pytest.mark.parametrize("name", ["nanogpt", "unet", "custom-loss", "control-flow", "lora"])
def test_the_traced_peak_is_the_measured_one_of_the_same_step(name: str) -> None:
    for row in compare(BY_NAME[name]):
        assert row.error == pytest.approx(0, abs=0.01), row


@pytest.mark.parametrize("name", ["numpy", "routed-experts"])
def test_a_step_that_reads_values_of_activations_has_a_coded_reason(name: str) -> None:
    assert {row.failure for row in compare(BY_NAME[name])} == {BY_NAME[name].expected_failure}


def test_blocks_and_loss_add_up_to_the_peak_and_work_to_three_passes() -> None:
    trace = trace_in_fp32()
    # The token table's head has the only gradient at the loss's peak; both are the same bytes on any machine.
    at_loss = trace.outside.at(6) + plain.LAYERS * trace.block.at(6) + trace.loss.at(6)
    assert at_loss == pytest.approx(trace.peak.at(6), rel=0.05)
    assert trace.forward + trace.backward.flops == pytest.approx(3 * trace.forward, rel=0.15)
    elements = sum(trace.outside_tensors) + plain.LAYERS * sum(trace.block_tensors)
    assert elements == sum(parameter.numel() for parameter in plain.NanoGpt().parameters())


@pytest.mark.parametrize("precision", ["bf16-autocast", "bf16-mixed"])
def test_a_lower_precision_keeps_fewer_bytes(precision: str) -> None:
    lower = trace_step.trace(BY_NAME["nanogpt"], TASK.model_copy(update={"precision": PRECISIONS[precision]}))
    assert lower.block.per_sample < 0.9 * trace_in_fp32().block.per_sample


def test_the_work_space_of_convolutions_counts() -> None:
    script = replace(BY_NAME["unet"], make_model=lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3)))
    script = replace(script, loss_of=lambda model, batch: model(batch["image"]).square().mean())
    traced = trace_step.trace(script, workload(script)).peak.at(4)
    assert traced == pytest.approx(measured_peak(script, 4), rel=0.02)


def test_every_script_of_the_benchmark_says_whether_it_can_be_traced() -> None:
    assert [script.name for script in SCRIPTS if script.expected_failure] == ["numpy", "routed-experts"]
    assert len(SCRIPTS) >= 10


def test_a_package_offers_the_ranked_scripts_as_entry_points(tmp_path: Path) -> None:
    entries.install(tmp_path)
    (package,) = distributions(path=[str(tmp_path)])
    offered = {point.name: point.load() for point in package.entry_points}
    assert offered.keys() == {entries.entry_point(name) for name in entries.NAMES}
    step = offered[entries.entry_point("nanogpt")]
    batch = step.make_batch({}, TASK, 0, range(2), torch.device("cpu"))
    assert step.loss(step.build_model({}, TASK), batch).requires_grad
