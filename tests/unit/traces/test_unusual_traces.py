"""Traces that are cut, large, of other programs, or of some ranks only: said plainly, in bounded memory."""

import io
import json
import tracemalloc

import pytest

from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis
from shardtune.traces.json_pieces import UnreadableTrace
from tests.support.values import synthetic_traces


def one_step(rank: int = 0, world_size: int = 2, **more):
    events = [
        synthetic_traces.step(0, 0, 100),
        synthetic_traces.event("cpu_op", "aten::mm", 0, 60),
        synthetic_traces.gloo(50, 90),
    ]
    return synthetic_traces.trace(rank, world_size, events, **more)


def read(text: str | bytes, **limits):
    return kineto.read(io.BytesIO(text.encode() if isinstance(text, str) else text), "rank_0.json", **limits)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_cut_trace_says_so_wherever_it_is_cut(share):
    text = json.dumps(one_step())
    with pytest.raises(UnreadableTrace, match=r"trace \(rank_0.json\) is cut: it ends after .* bytes"):
        read(text[: int(len(text) * share)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is cut"),
        ("PK\x03\x04", "is no JSON"),
        ("{}", "no events of torch.profiler"),
        ('{"traceEvents": []}', "no events of torch.profiler"),
        ('{"traceEvents": [1, null, "x", {"ph": "X"}]}', "no events of torch.profiler"),
        ('{"traceEvents" [', "':' is missing"),
    ],
)
def test_what_is_no_trace_is_named(text, says):
    with pytest.raises(UnreadableTrace, match=says):
        read(text)


def test_a_trace_that_is_too_large_ends_before_it_is_read():
    events = json.dumps(synthetic_traces.event("cpu_op", "aten::mm", 0, 1))
    with pytest.raises(UnreadableTrace, match="more than 1 MiB of JSON, the most that is read; record fewer steps"):
        read('{"traceEvents": [' + ",".join([events] * 20_000), most_bytes=1 << 20)
    with pytest.raises(UnreadableTrace, match="more than 100 events"):
        read('{"traceEvents": [' + ",".join([events] * 200), most_events=100)


class _Long(io.RawIOBase):
    """An endless trace, of which nothing is kept."""

    def __init__(self) -> None:
        self._event = (json.dumps(synthetic_traces.event("python_function", "f" * 2000, 0, 1)) + ",").encode()
        self._begun = False

    def read(self, size: int = -1) -> bytes:
        begin, self._begun = b"" if self._begun else b'{"traceEvents": [', True
        return begin + self._event * 400


def test_memory_does_not_grow_with_what_is_passed_over():
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableTrace, match="more than 8 MiB"):
            kineto.read(_Long(), "rank_0.json", most_bytes=8 << 20)
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def test_pieces_that_are_cut_anywhere_by_the_reading_are_the_same(monkeypatch):
    trace = one_step(note="ü" * 50, number=123456789)
    text = read(json.dumps(trace, ensure_ascii=False))
    monkeypatch.setattr("shardtune.traces.json_pieces._CHUNK", 7)
    assert str(read(json.dumps(trace, ensure_ascii=False))) == str(text)


def test_one_rank_of_eight_is_told_as_far_as_it_goes():
    actual_diagnosis = diagnosis([read(json.dumps(one_step(0, 8)))])
    assert actual_diagnosis.ranks == (0,) and actual_diagnosis.parts.transferring_s == pytest.approx(30e-6)
    assert "1 of 8 ranks: what the others did (rank 1, 2, 3, …) is not known" in actual_diagnosis.notes
    assert any("counted as transferring" in note for note in actual_diagnosis.notes)


def test_a_trace_without_collectives_or_steps_says_so():
    events = [
        synthetic_traces.event("cpu_op", "aten::mm", 0, 60),
        synthetic_traces.event("cpu_op", "aten::mm", 80, 100),
    ]
    actual_diagnosis = diagnosis([read(json.dumps(synthetic_traces.trace(0, 1, events)))])
    assert actual_diagnosis.overlap is None and actual_diagnosis.parts.compute_s == pytest.approx(80e-6)
    assert any("no collectives" in note for note in actual_diagnosis.notes) and any(
        "no steps" in note for note in actual_diagnosis.notes
    )


def test_categories_of_an_older_torch_are_known():
    trace = one_step()
    for event in trace["traceEvents"]:
        event["cat"] = {"cpu_op": "Operator"}.get(event["cat"], event["cat"])
    del trace["baseTimeNanoseconds"]
    assert diagnosis([read(json.dumps(trace))]).parts.compute_s == pytest.approx(60e-6)


def test_traces_of_two_jobs_or_twice_of_a_rank_are_rejected():
    with pytest.raises(UnreadableTrace, match=r"rank 0 has 2 traces \(rank_0.json, rank_0.json\)"):
        diagnosis([read(json.dumps(one_step())), read(json.dumps(one_step()))])
    with pytest.raises(UnreadableTrace, match="not of one job"):
        diagnosis([read(json.dumps(one_step(0, 2))), read(json.dumps(one_step(1, 4)))])
