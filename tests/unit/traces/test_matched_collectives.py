"""Waiting for another rank, apart from transferring: planted delays are found, with their size and their rank."""

import io
import json
from random import Random

import pytest

from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis
from tests.support.values import synthetic_traces


def read(trace: dict, name: str = "rank.json"):
    return kineto.read(io.BytesIO(json.dumps(trace).encode()), name)


def planted(delay_us: float, steps: int = 40, world_size: int = 4, skew_us: float = 0.0) -> list[dict]:
    """Ranks that reduce five times a step, 100 µs each; a rank drawn for each step comes late to one of them."""
    random, late = Random(5), []
    events: list[list] = [[] for _ in range(world_size)]
    for number in range(steps):
        begin = 2000.0 * number
        late.append(random.randrange(world_size))
        for rank in range(world_size):
            at = skew_us * rank
            events[rank].append(synthetic_traces.step(number, begin + at, begin + 1990 + at))
        ready = begin
        for k in range(5):
            starts = [
                ready + random.uniform(0, 4) + (delay_us if k == 2 and r == late[-1] else 0) for r in range(world_size)
            ]
            ready = max(starts) + 100
            for rank, start in enumerate(starts):
                events[rank].append(synthetic_traces.gloo(start + skew_us * rank, ready + skew_us * rank))
    return [synthetic_traces.trace(rank, world_size, own) for rank, own in enumerate(events)], late


def test_a_planted_wait_is_found_within_a_tenth_and_on_its_rank():
    traces, late = planted(300.0)
    actual_diagnosis = diagnosis([read(trace) for trace in traces])
    right = 0
    for number, rank in enumerate(late):
        waits = {step.rank: step.parts.waiting_s for step in actual_diagnosis.steps if step.step == number}
        others = [wait for of, wait in waits.items() if of != rank]
        right += waits[rank] < 30e-6 and all(270e-6 < wait < 330e-6 for wait in others)
    assert right >= 0.95 * len(late)
    assert actual_diagnosis.parts.transferring_s == pytest.approx(500e-6, rel=0.02)


def test_the_rank_that_is_always_late_is_named():
    steps = [synthetic_traces.step(n, 1000 * n, 1000 * n + 900) for n in range(3)]
    own = [[synthetic_traces.gloo(1000 * n + delay, 1000 * n + 500) for n in range(3)] for delay in (100, 300, 100)]
    actual_diagnosis = diagnosis([read(synthetic_traces.trace(rank, 3, steps + own[rank])) for rank in range(3)])
    late = actual_diagnosis.late_rank
    assert late is not None and (late.rank, late.steps, late.share_of_waiting) == (1, 3, 1.0)
    assert late.others_wait_s == pytest.approx(200e-6)


def test_clocks_that_are_apart_are_aligned_by_what_ends_together():
    traces, _ = planted(0.0, skew_us=5_000.0)
    actual_diagnosis = diagnosis([read(trace) for trace in traces])
    assert actual_diagnosis.parts.waiting_s < 20e-6
    assert any("clocks were 15.0 ms apart" in note for note in actual_diagnosis.notes)


def test_ranks_meet_within_their_own_group_only():
    groups = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    starts = {0: 100, 1: 150, 2: 400, 3: 400}
    traces = []
    for rank, group in groups.items():
        kernel = synthetic_traces.nccl(starts[rank], 500, 1, group)
        events = [synthetic_traces.step(0, 0, 600), *synthetic_traces.launched(kernel, 50)]
        traces.append(read(synthetic_traces.trace(rank, 4, events, "nccl")))
    waits = {step.rank: step.parts.waiting_s for step in diagnosis(traces).steps}
    assert waits == {0: pytest.approx(50e-6), 1: 0, 2: 0, 3: 0}


def test_sends_between_two_ranks_of_a_group_are_no_collective_instance_of_it():
    """Rank 0 sends to 1, later rank 2 to 3: nobody waits for all four."""
    traces = []
    for rank, (start, name) in enumerate([(0, "send"), (0, "recv"), (100, "send"), (100, "recv")]):
        kernel = synthetic_traces.nccl(start, start + 100, 1, [0, 1, 2, 3], name)
        events = [synthetic_traces.step(0, 0, 300), *synthetic_traces.launched(kernel, 0)]
        traces.append(read(synthetic_traces.trace(rank, 4, events, "nccl")))
    actual_diagnosis = diagnosis(traces)
    assert actual_diagnosis.parts.waiting_s == 0 and {
        collective.purpose for collective in actual_diagnosis.collectives
    } == {"activations"}


def test_groups_that_gloo_does_not_name_are_said_and_no_wait_is_made_up():
    groups = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "1", "ranks": [0, 1]}]
    traces = [
        synthetic_traces.trace(r, 4, [synthetic_traces.step(0, 0, 600), synthetic_traces.gloo(100 * r, 500)])
        for r in range(4)
    ]
    for trace in traces:
        trace["distributedInfo"]["pg_config"] = groups
    actual_diagnosis = diagnosis([read(trace) for trace in traces])
    assert actual_diagnosis.parts.waiting_s == 0 and actual_diagnosis.late_rank is None
    assert any("does not say which process group" in note for note in actual_diagnosis.notes)
