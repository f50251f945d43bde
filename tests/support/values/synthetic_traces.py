"""Traces as torch's profiler writes them, made up: their times are known, and may be drawn by chance."""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

Event = dict[str, Any]
BASE_NS = 1_719_853_884_000_000_000


def event(category: str, name: str, start_us: float, end_us: float, thread: int = 1, **arguments: Any) -> Event:
    """One complete event."""
    times = {"ts": start_us, "dur": end_us - start_us}
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, **times, "args": arguments}


def trace(rank: int, world_size: int, events: list[Event], backend: str = "gloo", **more: Any) -> dict[str, Any]:
    """The whole file of a rank."""
    metadata = {"backend": backend, "rank": rank, "world_size": world_size}
    return {
        "schemaVersion": 1,
        "distributedInfo": metadata,
        "traceEvents": events,
        "baseTimeNanoseconds": BASE_NS,
        **more,
    }


def step(number: int, start_us: float, end_us: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start_us, end_us)


def gloo(start_us: float, end_us: float, elements: int = 1000, kind: str = "all_reduce") -> Event:
    return event(
        "user_annotation", f"gloo:{kind}", start_us, end_us, 9, **{"Input Dims": [[elements]], "Input type": ["float"]}
    )


def nccl(
    start_us: float, end_us: float, correlation: int, ranks: list[int], name: str = "allreduce", elements: int = 1000
) -> Event:
    return event(
        "kernel",
        "ncclDevKernel_Generic",
        start_us,
        end_us,
        20,
        **{"correlation": correlation, "Collective name": name, "dtype": "Float", "Group size": len(ranks)},
        **{"In msg nelems": elements, "Out msg nelems": elements, "Process Group Ranks": str(ranks)},
    )


def launched(kernel: Event, at_us: float, took_us: float = 5.0) -> list[Event]:
    """A kernel with the call that launched it."""
    call = event("cuda_runtime", "cudaLaunchKernel", at_us, at_us + took_us, correlation=kernel["args"]["correlation"])
    return [call, kernel]


def on_cpu() -> dict[str, Any]:
    """Trace of a rank that trains on a CPU: an operator, a collective, the optimizer and the data loader."""
    events = [
        step(0, 0, 100),
        event("cpu_op", "aten::mm", 0, 60),
        event("cpu_op", "c10d::allreduce_", 40, 45, **{"Input Dims": [[1000]], "Input type": ["float"]}),
        gloo(50, 90),
        event("user_annotation", "Optimizer.step#AdamW.step", 90, 95),
        event("user_annotation", "enumerate(DataLoader)#_next", 95, 99),
    ]
    return trace(0, 2, events)


def on_gpu() -> dict[str, Any]:
    """Trace of a rank that trains on a GPU: a kernel, a collective and a copy, with their launches."""
    kernel = event("kernel", "gemm", 10, 60, correlation=3)
    collective = nccl(50, 90, 4, [0, 1])
    copy = event("gpu_memcpy", "Memcpy HtoD", 90, 95, correlation=5)
    launches = [event for work in (kernel, collective, copy) for event in launched(work, 5)]
    config = [{"pg_name": "0", "ranks": [0, 1]}]
    metadata = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": config}
    return trace(0, 2, [step(0, 0, 100), *launches]) | {"distributedInfo": metadata}


def write(folder: Path, traces: list[dict[str, Any]], packed: bool = True) -> Path:
    """One file a rank, as the profiler's users have them."""
    folder.mkdir(parents=True, exist_ok=True)
    for single_trace in traces:
        text = json.dumps(single_trace).encode()
        path = folder / f"rank_{single_trace['distributedInfo']['rank']}.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else text)
    return folder


def drawn_on_cpu(seed: int, world_size: int = 2) -> list[dict[str, Any]]:
    """Two steps of ranks that compute, reduce beside it or not, update, fetch data, in any order."""
    shared = Random(seed)
    plan = [[(shared.uniform(0, 800), shared.uniform(1, 150)) for _ in range(shared.randrange(1, 6))] for _ in range(2)]
    return [_drawn_rank(Random(f"{seed} {rank}"), rank, world_size, plan) for rank in range(world_size)]


def _drawn_rank(random: Random, rank: int, world_size: int, plan: list[list[tuple[float, float]]]) -> dict[str, Any]:
    events = []
    for number, collectives in enumerate(plan):
        begin = 1000.0 * number
        events.append(step(number, begin, begin + 1000))
        for _ in range(12):
            at = begin + random.uniform(0, 900)
            events.append(event("cpu_op", "aten::mm", at, at + random.uniform(1, 90)))
        at = begin + random.uniform(500, 800)
        events.append(event("user_annotation", "Optimizer.step#AdamW.step", at, at + random.uniform(50, 200)))
        at = begin + random.uniform(0, 700)
        events.append(event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", at, at + random.uniform(1, 90)))
        for at, seconds in collectives:
            start = begin + max(0.0, at - random.uniform(0, 100))
            events.append(gloo(start, begin + at + seconds))
    return trace(rank, world_size, events)


def drawn_on_cuda(seed: int, world_size: int = 2) -> list[dict[str, Any]]:
    """Two steps of GPUs behind their hosts: kernels, copies and collectives on streams of their own."""
    shared = Random(seed)
    plan = [
        [(shared.uniform(200, 1000), shared.uniform(1, 150)) for _ in range(shared.randrange(1, 6))] for _ in range(2)
    ]
    return [_drawn_gpu(Random(f"{seed} {rank}"), rank, world_size, plan) for rank in range(world_size)]


def _drawn_gpu(random: Random, rank: int, world_size: int, plan: list[list[tuple[float, float]]]) -> dict[str, Any]:
    events: list[Event] = []
    for number, collectives in enumerate(plan):
        begin, count = 2000.0 * number, 1000 * number
        events.append(step(number, begin, begin + 1000))
        events.append(event("user_annotation", "Optimizer.step#AdamW.step", begin + 700, begin + 900))
        for i in range(12):
            call = begin + random.uniform(0, 980)
            at = call + random.uniform(6, 600)
            name, kind = ("Memcpy HtoD", "gpu_memcpy") if i % 4 == 0 else ("gemm", "kernel")
            kernel = event(kind, name, at, at + random.uniform(1, 120), 7, correlation=count + i)
            events += launched(kernel, call)
        for i, (at, seconds) in enumerate(collectives):
            start = begin + at - random.uniform(0, 100)
            kernel = nccl(start, begin + at + seconds, count + 500 + i, list(range(world_size)))
            events += launched(kernel, start - random.uniform(10, 100))
    return trace(rank, world_size, events, "nccl")
