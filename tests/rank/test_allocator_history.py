"""History of a GPU's allocator, as in torch's snapshot: bytes held at the fullest moment, by kind and place."""

import pytest
import torch
from torch import nn

from shardtune.api_schemas.trials.diagnosis import MemoryMoment
from shardtune.workers.rank.measure import moments
from shardtune.workers.rank.measure.allocator_history import allocations_of, events_of
from shardtune.workers.rank.training import trace


def entry(action: str, address: int, size: int, at_us: int) -> dict:
    """Entry as in `torch.cuda.memory._snapshot()`."""
    return {"action": action, "addr": address, "size": size, "time_us": at_us, "stream": 0, "frames": []}


STEP = [
    entry("segment_alloc", 0, 1000, 1),
    entry("alloc", 0, 400, 2),
    entry("alloc", 400, 500, 3),
    entry("free_requested", 400, 500, 4),
    entry("free_completed", 400, 500, 6),
    entry("segment_map", 1000, 200, 7),
    entry("alloc", 400, 100, 8),
    {"action": "oom", "size": 10_000, "device_free": 5, "time_us": 9, "stream": 0, "frames": []},
]


def test_a_block_is_held_until_its_release_is_complete():
    events = events_of(STEP, allocated=50, reserved=60)
    assert [(event.total_bytes, event.reserved_bytes) for event in events] == [
        (450, 1060), (950, 1060), (450, 1060), (550, 1260),
    ]  # fmt: skip
    assert [(live.born, live.died, live.bytes) for live in allocations_of(events) if live.pointer == 400] == [
        (3000, 6000, 500),
        (8000, 1 << 63, 100),
    ]


class MadeHistory:
    """Recorder of a step in which the second layer's output holds the most memory."""

    def __init__(self, recorder: moments.MomentRecorder) -> None:
        self.recorder, self.now, self.entries = recorder, 0, []

    def stop(self):
        """See `History`."""
        return events_of(self.entries, 0, 4096)


def test_the_fullest_moment_of_a_gpu_says_phase_module_kinds_and_what_is_reserved(monkeypatch):
    monkeypatch.setattr(moments, "CudaHistory", lambda: None)
    clock = iter(range(1, 1000))
    monkeypatch.setattr(moments.time, "time_ns", lambda: 1000 * next(clock))
    recorder = moments.MomentRecorder(0, None, "ddp", is_compiled=False, is_cuda=True)
    history = recorder._history = MadeHistory(recorder)

    def allocate(address: int, size: int) -> None:
        history.entries.append(entry("alloc", address, size, next(clock)))

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    allocate(model[0].weight.untyped_storage().data_ptr(), 100)
    recorder.watch_modules(model)
    recorder.note("parameters", [model[0].weight])
    recorder.enter("forward")
    recorder.enter_module("0")
    allocate(1, 300)
    recorder.leave_module("0", [])
    recorder.enter_module("1")
    allocate(2, 600)
    moment = recorder.finish()
    assert (moment.phase, moment.module, moment.bytes, moment.reserved_bytes) == ("forward", "1", 1000, 4096)
    assert moment.kinds == {"activations": 900, "parameters": 100} and moment.holders == {"1": 600, "0": 300}
    assert "reserved by the allocator and free" in moment.describe()
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks, "no later step may pay for it"


def test_running_out_of_device_memory_says_what_was_held():
    class Recorder:
        def finish(self):
            return MemoryMoment(
                rank=3, bytes=100, limit_bytes=None, peak_bytes=100, phase="backward", module="layers.17.mlp",
                kinds={"activations": 100},
            )  # fmt: skip

    with pytest.raises(torch.OutOfMemoryError) as raised, trace.described_oom(Recorder()):
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
    first, second = str(raised.value).splitlines()
    assert first == "Tried to allocate 2.00 GiB" and second.startswith("rank 3 held ")
    assert "in backward of layers.17.mlp: activations 100%" in second
    with pytest.raises(torch.OutOfMemoryError, match=r"^Tried to$"), trace.described_oom(None):
        raise torch.OutOfMemoryError("Tried to")
