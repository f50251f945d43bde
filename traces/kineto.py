"""Convert the events of a Kineto trace to the table of one rank: CUDA kernels and copies, or operators and gloo
threads. Reads the fields written by torch 1.12 to 2.13; `record_param_comms` and kernel arguments follow torch's
ParamCommsUtils."""

import re
from collections import defaultdict
from typing import Any, BinaryIO

from shardtune.traces.gloo import GlooOperation, HostCall, collectives_of
from shardtune.traces.json_pieces import EVENTS, JsonPieces, UnreadableTrace
from shardtune.traces.kinds import (
    collective_kind,
    computes,
    dtype_bytes,
    is_collective_kernel,
    is_data,
    is_host_call,
    is_optimizer,
)
from shardtune.traces.rank_trace import Collective, RankTrace, StepMark, Work
from shardtune.traces.spans import spans

MOST_BYTES = 1 << 30
MOST_EVENTS = 4_000_000
_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_CATEGORIES = {
    "operator": "cpu_op",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",
    "cuda_driver": "cuda_runtime",
    "user_annotation": "range",
}
"""Event categories by their names in other torch versions (torch before 1.13 wrote `Operator`, `Kernel`, `Memcpy`,
`Runtime`)."""
_READ_CATEGORIES = {"cpu_op", "range", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime"}

Pair = tuple[int, int]


def read(stream: BinaryIO, name: str, most_bytes: int = MOST_BYTES, most_events: int = MOST_EVENTS) -> RankTrace:
    """Read one rank's trace table from the text of a trace file.

    Raises:
        UnreadableTrace: the trace is cut off, too large, or has no known events.
    """
    table = _Table(name)
    about: dict[str, Any] = {}
    for key, value in JsonPieces(stream, name, most_bytes).items():
        if key != EVENTS:
            about[key] = value
        elif isinstance(value, dict):
            table.add(value)
            if table.events > most_events:
                raise UnreadableTrace(
                    f"trace ({name}) has more than {most_events:,} events, the most that are read; record fewer steps "
                    "(torch.profiler.schedule, active=3)"
                )
    return table.finished(about)


class _Table:
    """Events of one trace while they are read, in nanoseconds of the trace's own clock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.events = 0
        self._steps: list[StepMark] = []
        self._operators: dict[Any, list[Pair]] = defaultdict(list)
        self._host_calls: list[HostCall] = []
        self._ranges: dict[str, list[Pair]] = {"optimizer": [], "data": []}
        self._gloo: list[GlooOperation] = []
        self._gloo_threads: set[Any] = set()
        self._kernels: list[tuple[Pair, Any]] = []
        self._copies: list[tuple[Pair, Any]] = []
        self._nccl: list[tuple[Pair, dict[str, Any], str]] = []
        self._launches: dict[Any, Pair] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Add one event of `traceEvents` to the table; unknown kinds of events are skipped."""
        if event.get("ph") != "X" or "ts" not in event or "dur" not in event:
            return
        category = str(event.get("cat", "")).lower()
        category = _CATEGORIES.get(category, category)
        if category not in _READ_CATEGORIES:
            return
        self.events += 1
        start = round(float(event["ts"]) * 1000)
        pair = (start, start + round(float(event["dur"]) * 1000))
        name, arguments = str(event.get("name", "")), event.get("args") or {}
        if category == "cuda_runtime":
            if "correlation" in arguments:
                self._launches[arguments["correlation"]] = pair
        elif category == "cpu_op":
            self._add_operator(name, pair, event.get("tid"), arguments)
        elif category == "range":
            self._add_range(name, pair, event.get("tid"), arguments)
        elif category == "kernel" and is_collective_kernel(name):
            self._nccl.append((pair, arguments, name))
        else:
            (self._kernels if category == "kernel" else self._copies).append((pair, arguments.get("correlation")))

    def _add_operator(self, name: str, pair: Pair, thread: Any, arguments: dict[str, Any]) -> None:
        if is_host_call(name):
            self._host_calls.append(HostCall(pair[0], name, arguments))
        elif computes(name):
            self._operators[thread].append(pair)

    def _add_range(self, name: str, pair: Pair, thread: Any, arguments: dict[str, Any]) -> None:
        if (step := _STEP.match(name)) is not None:
            self._steps.append(StepMark(int(step[1]), *pair))
        elif name.startswith("gloo:"):
            self._gloo.append(GlooOperation(*pair, name, arguments))
            self._gloo_threads.add(thread)
        elif is_optimizer(name):
            self._ranges["optimizer"].append(pair)
        elif is_data(name):
            self._ranges["data"].append(pair)

    def finished(self, about: dict[str, Any]) -> RankTrace:
        """Return the complete table, with times on the clock common to all ranks if the trace contains its offset
        (`baseTimeNanoseconds`)."""
        if not self.events:
            raise UnreadableTrace(
                f"trace ({self._name}) has no events of torch.profiler (cpu_op, kernel, …); export it with "
                "`prof.export_chrome_trace`, one file a rank"
            )
        base = int(about.get("baseTimeNanoseconds") or 0)
        distributed = about.get("distributedInfo") or {}
        world_size = distributed.get("world_size")
        is_cuda = bool(self._kernels or self._nccl)
        compute = self._work(self._kernels) if is_cuda else self._operator_work()
        collectives = (
            self._of_nccl(base)
            if is_cuda
            else collectives_of(self._gloo, self._host_calls, base, None if _has_groups(distributed) else world_size)
        )
        moments = [moment for pair in self._all() for moment in pair]
        return RankTrace(
            name=self._name,
            rank=_rank(distributed, self._name),
            world_size=world_size,
            device="cuda" if is_cuda else "cpu",
            steps=tuple(
                StepMark(mark.number, mark.start + base, mark.end + base)
                for mark in sorted(set(self._steps), key=lambda mark: mark.start)
            ),
            compute=compute.shifted(base),
            copies=self._work(self._copies).shifted(base),
            optimizer=spans(self._ranges["optimizer"]) + base,
            data=spans(self._ranges["data"]) + base,
            collectives=tuple(sorted(collectives, key=lambda collective: collective.start)),
            has_unnamed_groups=any(collective.group is None for collective in collectives) and _has_groups(distributed),
            first=min(moments) + base,
            last=max(moments) + base,
            events=self.events,
        )

    def _all(self) -> list[Pair]:
        work = [pair for pair, _ in self._kernels + self._copies] + [pair for pair, _, _ in self._nccl]
        host = [pair for own in self._operators.values() for pair in own] + [
            (start, end) for start, end, _, _ in self._gloo
        ]
        return (
            work + host + [(mark.start, mark.end) for mark in self._steps] or list(self._launches.values()) or [(0, 1)]
        )

    def _work(self, recorded: list[tuple[Pair, Any]]) -> Work:
        launched = [self._launches.get(correlation, (pair[0], pair[0])) for pair, correlation in recorded]
        return Work(spans([pair for pair, _ in recorded]), spans(launched))

    def _operator_work(self) -> Work:
        """Return the operators of all threads except gloo's, whose operators belong to collectives."""
        own = spans(
            [pair for thread, pairs in self._operators.items() if thread not in self._gloo_threads for pair in pairs]
        )
        return Work(own, own[:, [0, 0]])

    def _of_nccl(self, base: int) -> list[Collective]:
        collectives = []
        for (start, end), arguments, name in self._nccl:
            launched = self._launches.get(arguments.get("correlation"), (start, start))[0]
            kind = collective_kind(str(arguments.get("Collective name") or name))
            elements = max(_count(arguments.get("In msg nelems")), _count(arguments.get("Out msg nelems"))) or None
            size = dtype_bytes(str(arguments.get("dtype", "")))
            collectives.append(
                Collective(
                    kind=kind,
                    start=start + base,
                    end=end + base,
                    launched=launched + base,
                    message_bytes=None if elements is None or size is None else elements * size,
                    elements=elements,
                    group=_group(arguments),
                    group_size=arguments.get("Group size"),
                )
            )
        return collectives


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _group(arguments: dict[str, Any]) -> tuple[int, ...] | str | None:
    ranks = str(arguments.get("Process Group Ranks", ""))
    if ranks and "..." not in ranks:
        return tuple(int(rank) for rank in re.findall(r"\d+", ranks)) or None
    name = arguments.get("Process Group Name")
    return None if name is None else str(name)


def _has_groups(distributed: dict[str, Any]) -> bool:
    groups = distributed.get("pg_config") or []
    sizes = {len(group.get("ranks") or ()) or group.get("pg_size") for group in groups if isinstance(group, dict)}
    return any(size is not None and 1 < int(size) < int(distributed.get("world_size") or 0) for size in sizes)


def _rank(distributed: dict[str, Any], name: str) -> int:
    """Return the rank stated in the trace, or else in its file name; 0 if neither states one."""
    if isinstance(distributed.get("rank"), int):
        return int(distributed["rank"])
    named = re.search(r"rank[-_.]?(\d+)", name, re.IGNORECASE)
    return int(named[1]) if named else 0
