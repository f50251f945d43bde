"""Every moment of a step is in one part: held against a look at 200,000 moments, with rules written anew."""

import io
import json

import numpy as np
import pytest

from shardtune.api_schemas.trials.diagnosis import PART_NAMES
from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis
from shardtune.traces.rank_trace import RankTrace
from tests.support.values import synthetic_traces

MOMENTS = 200_000


def table(trace: dict) -> RankTrace:
    return kineto.read(io.BytesIO(json.dumps(trace).encode()), f"rank_{trace['distributedInfo']['rank']}.json")


def _within(spans, moments, chosen=None):
    """Moments that lie in any of the spans; with `chosen`, in any of those."""
    there = np.zeros(len(moments), dtype=bool)
    for i, (start, end) in enumerate(np.asarray(spans).reshape(-1, 2)):
        if chosen is None or chosen[i]:
            there |= (moments >= start) & (moments < end)
    return there


def _last_to_come(traces, own, number):
    """Arrival of the last rank at the n-th collective of a step (all are alike here)."""
    of_step = []
    for trace in traces:
        mark = next(mark for mark in trace.steps if mark.number == number)
        of_step.append([collective for collective in trace.collectives if mark.start <= collective.launched < mark.end])
    mine = of_step[traces.index(own)]
    return [(item, max(others[i].start for others in of_step)) for i, item in enumerate(mine)]


def _looked_at(traces, own, reported):
    """Shares of the parts of one step, by looking at evenly spread moments."""
    mark = next(mark for mark in own.steps if mark.number == reported.step)
    start, end = mark.start, mark.end
    work = [
        *own.compute.spans,
        *own.copies.spans,
        *((collective.start, collective.end) for collective in own.collectives),
    ]
    calls = [
        *own.compute.launched,
        *own.copies.launched,
        *((collective.launched, collective.launched) for collective in own.collectives),
    ]
    if own.device == "cuda":
        begins = [
            min(w[0] for w, c in zip(work, calls, strict=True) if other.start <= c[0] < other.end)
            for other in own.steps
        ]
        at = own.steps.index(mark)
        mine = [w[1] for w, c in zip(work, calls, strict=True) if start <= c[0] < end]
        start, end = begins[at], begins[at + 1] if at + 1 < len(begins) else max(mine)
    moments = start + (np.arange(MOMENTS) + 0.5) * (end - start) / MOMENTS
    late = [any(a <= call[0] < b for a, b in own.optimizer) for call in own.compute.launched]
    met = [pair for mark in own.steps for pair in _last_to_come(traces, own, mark.number)]
    actual = {name: np.zeros(MOMENTS, dtype=bool) for name in PART_NAMES}
    taken = np.zeros(MOMENTS, dtype=bool)

    def take(name, there):
        nonlocal taken
        actual[name] |= there & ~taken
        taken |= there

    if own.device == "cpu":
        take("data", _within(own.data, moments))
    take("optimizer", _within(own.compute.spans, moments, late))
    take("compute", _within(own.compute.spans, moments))
    take("transferring", _within([(min(last, item.end), item.end) for item, last in met], moments))
    take("copies", _within(own.copies.spans, moments))
    take("waiting", _within([(item.start, item.end) for item, _ in met], moments))
    if own.device == "cpu":
        take("optimizer", _within(own.optimizer, moments))
    else:
        take("data", _within(own.data, moments))
        order = sorted(range(len(work)), key=lambda i: work[i][0])
        ahead = np.searchsorted([work[i][0] for i in order], moments, side="left")
        recorded = ahead < len(order)
        call = np.array([calls[i][1] for i in order])[np.minimum(ahead, len(order) - 1)]
        take("idle", recorded & (moments >= call))
    take("host", np.ones(MOMENTS, dtype=bool))
    return {name: there.mean() for name, there in actual.items()}, (end - start) * 1e-9


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drawn", [synthetic_traces.drawn_on_cpu, synthetic_traces.drawn_on_cuda])
def test_parts_are_what_a_look_at_each_moment_finds(drawn, seed):
    traces = [table(item) for item in drawn(seed)]
    for step in diagnosis(traces).steps:
        looked, step_s = _looked_at(traces, traces[step.rank], step)
        assert step.parts.step_s == pytest.approx(step_s, rel=1e-6)
        for name, share in looked.items():
            assert getattr(step.parts, f"{name}_s") / step_s == pytest.approx(share, abs=0.001), name


def test_communication_beside_operators_is_hidden_and_the_rest_exposed():
    events = [
        synthetic_traces.step(3, 0, 1000),
        synthetic_traces.event("cpu_op", "aten::mm", 0, 400),
        synthetic_traces.event("cpu_op", "aten::relu", 350, 500, 2),
        synthetic_traces.gloo(300, 700),
    ]
    actual_diagnosis = diagnosis([table(synthetic_traces.trace(0, 1, events))])
    assert actual_diagnosis.overlap == 0.5 and actual_diagnosis.steps[0].step == 3
    assert actual_diagnosis.parts.compute_s == pytest.approx(
        500e-6
    ) and actual_diagnosis.parts.transferring_s == pytest.approx(200e-6)
    assert actual_diagnosis.parts.host_s == pytest.approx(300e-6)


def test_operators_that_contain_others_do_not_hide_the_communication_they_wait_for():
    events = [
        synthetic_traces.step(0, 0, 100),
        synthetic_traces.event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 0, 100),
        # DeepSpeed reduces in a hook of this one.
        synthetic_traces.event("cpu_op", "torch::autograd::AccumulateGrad", 5, 95),
        synthetic_traces.event("cpu_op", "c10d::allreduce_", 10, 90),
        synthetic_traces.gloo(10, 90),
    ]
    actual_diagnosis = diagnosis([table(synthetic_traces.trace(0, 1, events))])
    assert actual_diagnosis.overlap == 0 and actual_diagnosis.parts.transferring_s == pytest.approx(80e-6)


def test_a_gpu_that_waits_for_its_host_is_told_from_one_that_waits_for_a_launch():
    kernels = [synthetic_traces.event("kernel", "gemm", at, at + 10, 7, correlation=at) for at in (100, 200)]
    events = [
        synthetic_traces.step(0, 0, 300),
        *synthetic_traces.launched(kernels[0], 90),
        *synthetic_traces.launched(kernels[1], 165, took_us=5),
    ]
    actual_diagnosis = diagnosis([table(synthetic_traces.trace(0, 1, events, "nccl"))])
    assert actual_diagnosis.parts.step_s == pytest.approx(110e-6)
    assert actual_diagnosis.parts.host_s == pytest.approx(60e-6) and actual_diagnosis.parts.idle_s == pytest.approx(
        30e-6
    )


def test_bytes_and_bandwidth_are_those_of_nccl_tests():
    kernels = [
        synthetic_traces.nccl(100, 200, 1, [0, 1], "all_gather_into_tensor", 1_000_000),
        synthetic_traces.nccl(300, 400, 2, [0, 1], "_reduce_scatter_base", 500_000),
    ]
    events = [
        synthetic_traces.step(0, 0, 500),
        *(e for kernel in kernels for e in synthetic_traces.launched(kernel, 50)),
    ]
    actual_diagnosis = diagnosis([table(synthetic_traces.trace(rank, 2, events, "nccl")) for rank in (0, 1)])
    gathered = next(collective for collective in actual_diagnosis.collectives if collective.kind == "all_gather")
    assert (gathered.purpose, gathered.message_bytes, gathered.moved_bytes) == ("parameters", 4_000_000, 2_000_000)
    assert gathered.bytes_per_s == pytest.approx(2e6 / 100e-6)
    reduced = next(collective for collective in actual_diagnosis.collectives if collective.kind == "reduce_scatter")
    assert (reduced.purpose, reduced.moved_bytes) == ("gradients", 1_000_000)


def test_what_was_asked_of_gloo_is_told_not_what_it_ran():
    """FSDP's reduce-scatter runs as an all-reduce of the whole; its call says so, and how large the group is."""
    types = ["float", "float", "", "", "Scalar"]
    shapes = {"Input Dims": [[500], [2000], [], [], []], "Input type": types}
    events = [
        synthetic_traces.step(0, 0, 100),
        synthetic_traces.event("cpu_op", "c10d::_reduce_scatter_base_", 5, 30, **shapes),
        synthetic_traces.event(
            "cpu_op",
            "c10d::_allgather_base_",
            35,
            60,
            **{"Input Dims": [[2000], [500], [], [], []], "Input type": types},
        ),
        synthetic_traces.gloo(10, 30, 2000),
        synthetic_traces.gloo(40, 60, 500, "all_gather"),
    ]
    actual_diagnosis = diagnosis([table(synthetic_traces.trace(0, 8, events))])
    reported = {
        collective.kind: (collective.purpose, collective.group_size, collective.message_bytes)
        for collective in actual_diagnosis.collectives
    }
    assert reported == {"reduce_scatter": ("gradients", 4, 8000), "all_gather": ("parameters", 4, 8000)}
