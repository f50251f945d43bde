"""Each rule on a step made up for it: what is planted is named with a remedy that the space admits, a healthy step is not."""

import io
import json
from pathlib import Path

import pytest

from shardtune.api_schemas.formatting import speed_in_words
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.diagnosis.findings.find import RULES, find_all
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial
from tests.support.values import synthetic_traces, tuner_inputs

MODEL = "llama-2-7b"
BLOCK = 200_000_000
COMPUTE, HOST, NORM = ("compute", 60), ("host", 5), ("all_reduce", 0.1, 1)
REDUCED = [("all_reduce", 2, BLOCK // 10)] * 4
GATHERED = [("all_gather", 2, BLOCK // 10)] * 4
HEALTHY = [COMPUTE, HOST, *REDUCED, NORM]
DDP, FSDP2, ZERO2 = {"kind": "ddp"}, {"kind": "fsdp2", "dp_shard": 2}, {"kind": "zero", "stage": 2}


def diagnosed(plan: list[tuple], *late_by_step: float) -> Diagnosis:
    """Two ranks that go through the plan three times: kind, milliseconds, elements. Rank 1 comes so many milliseconds late."""
    traces = []
    for rank in range(2):
        events, now = [], 0.0
        for number, late_ms in enumerate(late_by_step or (0.0, 0.0, 0.0)):
            begin = now
            events.append(synthetic_traces.event("cpu_op", "aten::mm", now, now + 1e3 * late_ms * rank))
            now += 1e3 * late_ms
            for kind, duration, *elements in plan:
                end = now + 1e3 * duration
                start = now - (1e3 * late_ms if rank == 0 and (kind, duration, *elements) == plan[0] else 0.0)
                events += _events(kind, start, end, *elements)
                now = end
            events.append(synthetic_traces.step(number, begin, now))
        trace = synthetic_traces.trace(rank, 2, events)
        traces.append(kineto.read(io.BytesIO(json.dumps(trace).encode()), f"rank_{rank}"))
    return diagnosis(traces)


def _events(kind: str, start: float, end: float, elements: int = 0) -> list[dict]:
    if kind == "compute":
        return [synthetic_traces.event("cpu_op", "aten::mm", start, end)]
    if kind == "data":
        return [synthetic_traces.event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", start, end)]
    return [] if kind == "host" else [synthetic_traces.gloo(start, end, elements, kind)]


def trial(strategy: dict, fits: bool = True, batch: int = 8, gpus: bool = False, **config) -> TracedTrial:
    """Diagnosis of a Llama of 7 billion parameters on two ranks."""
    workload = Workload(sequence_length=128, global_batch=batch, precision=PRECISIONS["fp32"])
    cluster = tuner_inputs.gpus(per_node=2) if gpus else tuner_inputs.cpu(2, memory_gib=400)
    trial_config = TrialConfig.model_validate({"strategy": strategy, **config})
    space = tuner_inputs.space_of(cluster, None, workload, tuner_inputs.llama(MODEL))
    return TracedTrial(trial_config, workload, cluster, space, lambda changed: fits)


def test_a_healthy_step_has_no_findings():
    actual_diagnosis = diagnosed(HEALTHY)
    assert find_all(actual_diagnosis) == () == find_all(actual_diagnosis, trial(DDP, micro_batch=4))
    assert find_all(diagnosed([COMPUTE, HOST])) == ()


@pytest.mark.parametrize(
    ("kind", "plan", "of", "knobs"),
    [
        ("host_bound", [COMPUTE, ("host", 60), NORM], trial(DDP, batch=16), {"micro_batch": 8}),
        (
            "reduces_every_micro_batch",
            [COMPUTE, *REDUCED * 5],
            trial(DDP | {"grad_sync": "every"}, micro_batch=1),
            {"grad_sync": "last"},
        ),
        ("reduces_every_micro_batch", [COMPUTE, *REDUCED * 5], trial(ZERO2, micro_batch=2), {"stage": 1}),
        (
            "buckets_too_small",
            [COMPUTE, *[("all_reduce", 0.12, 1024)] * 200, NORM],
            trial(DDP | {"bucket_cap_mb": 1}, micro_batch=4),
            {"bucket_cap_mb": 25},
        ),
        (
            "units_too_small",
            [COMPUTE, *[("all_gather", 0.2, 4096)] * 100, NORM],
            trial(FSDP2, micro_batch=4),
            {"blocks_per_unit": 8},
        ),
        (
            "all_gathers_dominate",
            [COMPUTE, *GATHERED * 5, *[("reduce_scatter", 2, BLOCK // 10)] * 20, NORM],
            trial(FSDP2, micro_batch=4),
            {"reshard_after_forward": False},
        ),
        ("all_gathers_dominate", [COMPUTE, *GATHERED * 8], trial(ZERO2 | {"stage": 3}, micro_batch=2), {"stage": 2}),
        ("network_limits", [COMPUTE, ("all_reduce", 90, BLOCK), NORM], trial(DDP, micro_batch=4), {}),
        (
            "buckets_too_large",
            [("compute", 600), ("all_reduce", 300, 20_000_000), NORM],
            trial(DDP | {"bucket_cap_mb": 4096}, micro_batch=4),
            {"bucket_cap_mb": 25},
        ),
        (
            "checkpointed_without_need",
            HEALTHY,
            trial(DDP, micro_batch=4, activation_checkpointing="full"),
            {"activation_checkpointing": "none", "checkpoint_every": 1},
        ),
        (
            "checkpointed_without_need",
            HEALTHY,
            trial(DDP, micro_batch=4, activation_checkpointing="selective", selective_keeps="attention"),
            {"activation_checkpointing": "none", "checkpoint_every": 1, "selective_keeps": "products"},
        ),
        ("data_waits", [("data", 20), *HEALTHY], trial(DDP, micro_batch=4), {}),
    ],
)
def test_what_is_planted_is_among_the_first_two_findings(kind, plan, of, knobs):
    observed_findings = find_all(diagnosed(plan), of)
    assert kind in [finding.kind for finding in observed_findings[:2]], observed_findings
    next_run = next(finding for finding in observed_findings if finding.kind == kind)
    assert next_run.knobs == knobs
    assert next_run.measured >= next_run.threshold and 0 < next_run.expected_gain < 1
    assert all(of.admits(finding.knobs) for finding in observed_findings if finding.knobs)


def on_gpu(plan: list[tuple]) -> Diagnosis:
    """Two GPUs whose host launches everything at once: kind, microseconds, elements."""
    traces = []
    for rank in range(2):
        events, now = [], 100.0
        for number in range(3):
            events.append(synthetic_traces.step(number, now - 50, now - 10))
            end = now
            for place, (kind, duration, *elements) in enumerate(plan):
                start, end, mark = end, end + duration, 100 * number + place
                if kind in ("gpu_memcpy", "kernel"):
                    kernel = synthetic_traces.event(kind, kind, start, end, 7, correlation=mark)
                else:
                    kernel = synthetic_traces.nccl(start, end, mark, [0, 1], kind, *elements)
                events += synthetic_traces.launched(kernel, now - 40, took_us=1)
            now = end + 60
        trace = synthetic_traces.trace(rank, 2, events, "nccl")
        traces.append(kineto.read(io.BytesIO(json.dumps(trace).encode()), f"rank_{rank}"))
    return diagnosis(traces)


@pytest.mark.parametrize(
    ("kind", "plan", "strategy", "knobs"),
    [
        (
            "offload_costs",
            [("kernel", 600), ("gpu_memcpy", 300)],
            ZERO2 | {"offload_optimizer": {"device": "cpu"}},
            {"offload_optimizer": "none"},
        ),
        (
            "offload_costs",
            [("kernel", 600), ("gpu_memcpy", 300)],
            FSDP2 | {"cpu_offload": True},
            {"cpu_offload": False},
        ),
        (
            "units_too_large",
            [("kernel", 600), ("all_gather_into_tensor", 300, 8 * BLOCK)],
            FSDP2 | {"blocks_per_unit": 8, "reshard_after_forward": False, "grad_sync": "last"},
            {"blocks_per_unit": 1},
        ),
    ],
)
def test_what_only_gpus_show_is_named(kind, plan, strategy, knobs):
    observed_findings = find_all(on_gpu(plan), trial(strategy, gpus=True, micro_batch=4))
    assert kind in [finding.kind for finding in observed_findings[:2]], observed_findings
    assert next(finding for finding in observed_findings if finding.kind == kind).knobs == knobs
    assert kind in [finding.kind for finding in find_all(on_gpu(plan))[:2]]
    assert kind not in [
        finding.kind for finding in find_all(on_gpu(plan), trial(strategy, fits=False, gpus=True, micro_batch=4))
    ]


def test_a_late_rank_is_named_and_no_knob_is_promised():
    observed_findings = find_all(
        diagnosed([("all_reduce", 10, BLOCK // 10), *HEALTHY], 40, 40, 40), trial(DDP, micro_batch=4)
    )
    assert (observed_findings[0].kind, observed_findings[0].knobs) == (
        "late_rank",
        {},
    ) and "rank 1" in observed_findings[0].remedy


def test_a_rank_that_was_late_once_is_not_called_late():
    assert find_all(diagnosed([("all_reduce", 10, BLOCK // 10), *HEALTHY], 120, 1, 1)) == ()


def test_no_rank_is_called_late_where_other_programs_took_the_cores():
    actual_diagnosis = diagnosed([("all_reduce", 10, BLOCK // 10), *HEALTHY], 40, 40, 40)
    run = ProfilerRecording(folder="traces", bytes=1, steps=3, step_s=1, plain_step_s=1, elapsed_s=1, host_cpu_cores=4)
    of = trial(DDP, micro_batch=4)

    def diagnose(foreign: float | None) -> Diagnosis:
        recorded = run.model_copy(update={"foreign_cpu_cores": foreign})
        return explain.explain(actual_diagnosis.model_copy(update={"recorded": recorded}), of, None)

    busy = diagnose(2.0)
    assert "late_rank" not in [finding.kind for finding in busy.findings]
    assert "other programs kept 2.0 of 4 cores busy while this was recorded" in busy.notes[-1]
    for foreign in (None, 0.1):
        quiet = diagnose(foreign)
        assert (quiet.findings[0].kind, quiet.notes) == ("late_rank", actual_diagnosis.notes)


def test_a_rule_is_silent_where_memory_or_the_space_admits_no_change():
    busy = diagnosed([COMPUTE, *GATHERED * 5, *[("reduce_scatter", 2, BLOCK // 10)] * 20, NORM])
    assert [finding.kind for finding in find_all(busy, trial(FSDP2, fits=False, micro_batch=4)) if finding.knobs] == []
    slow_host = diagnosed([COMPUTE, ("host", 60), NORM])
    assert [finding.kind for finding in find_all(slow_host, trial(DDP, batch=2))] == []


def test_without_a_configuration_remedies_are_words():
    observed_findings = find_all(diagnosed([COMPUTE, ("host", 60), *GATHERED * 5, NORM]))
    assert {finding.kind for finding in observed_findings} >= {"host_bound", "all_gathers_dominate"}
    assert all(finding.remedy and not finding.knobs for finding in observed_findings)


def test_the_largest_expected_gain_comes_first():
    observed_findings = find_all(diagnosed([("data", 30), COMPUTE, ("host", 60), *GATHERED * 5, NORM]))
    gains = [finding.expected_gain for finding in observed_findings]
    assert len(gains) > 2 and gains == sorted(gains, reverse=True)


def test_a_link_is_held_against_what_it_gave_when_it_was_measured():
    actual_diagnosis = diagnosed([COMPUTE, ("all_reduce", 90, BLOCK // 4), NORM])
    as_measured = max(collective.bytes_per_s or 0 for collective in actual_diagnosis.collectives)
    slower = [
        finding
        for finding in find_all(actual_diagnosis, link_bytes_per_s=3 * as_measured)
        if finding.kind == "network_limits"
    ]
    assert "33% of that now" in slower[0].evidence
    assert f"the link gave {speed_in_words(3 * as_measured)} when" in slower[0].evidence, "and not 0.00 GB/s"
    assert not [
        finding
        for finding in find_all(actual_diagnosis, link_bytes_per_s=as_measured)
        if finding.kind == "network_limits"
    ]


def test_each_rule_has_a_planted_example_here():
    names = {rule.__name__ for rule in RULES}
    text = Path(__file__).read_text()
    assert [name for name in names if f'"{name}"' not in text] == []


SIX_SMALL = [COMPUTE, *[("all_reduce", 8, 30_000)] * 6]


def test_few_small_calls_are_a_finding_by_their_share_of_the_step():
    kinds = [finding.kind for finding in find_all(diagnosed(SIX_SMALL))]
    assert "buckets_too_small" in kinds
    hidden = [("compute", 400), *[("all_reduce", 8, 30_000)] * 6]
    assert "buckets_too_small" not in [finding.kind for finding in find_all(diagnosed(hidden))], "11 % of the step"


def test_the_largest_part_that_no_rule_explains_is_named():
    # Two large messages that are sent as fast as the link goes: nothing to merge, nothing to split.
    sent = diagnosed([COMPUTE, ("broadcast", 50, BLOCK // 10), NORM])
    explained = explain.explain(sent, None, None)
    assert explained.notes[-1].startswith("no rule explains the largest part besides computing: communication that no")
    assert "of the step" in explained.notes[-1]
    for plan in (SIX_SMALL, HEALTHY):
        assert not any("no rule explains" in note for note in explain.explain(diagnosed(plan), None, None).notes), plan
