"""Events of one trace while they are read: compact, bounded in number, in nanoseconds of the trace's own clock."""

import re
from array import array
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardtune.traces import json_fields, nccl
from shardtune.traces.gloo import GlooOperation, HostCall, gloo_operation, host_call
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.traces.kinds import computes, is_collective_kernel, is_data, is_host_call, is_optimizer
from shardtune.traces.nccl import NcclKernel
from shardtune.traces.rank_trace import StepMark, Work
from shardtune.traces.spans import Spans, spans

_MOST_COLLECTIVES, _MOST_STEPS, _MOST_THREADS, _MOST_GROUPS = 200_000, 256, 4096, 4096
"""Maximum numbers of collectives, steps, threads and process groups in one trace, each far above what a job records in
a few steps."""
_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
_CATEGORIES = {
    "operator": "cpu_op",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",
    "cuda_driver": "cuda_runtime",
    "user_annotation": "range",
}
"""Standard names of event categories. Keys are the names that other versions of torch write (before 1.13: `Operator`,
`Kernel`, `Memcpy`, `Runtime`)."""
_READ_CATEGORIES = {"cpu_op", "range", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime"}
_UNKNOWN = -1
"""Value that stands for a missing correlation id (the number that links a kernel to the host call that launched it)."""

Pair = tuple[int, int]


class EventTable:
    """Table of the events in one trace file, from which the trace table of a rank is made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.events = 0
        self.first, self.last = json_fields.MOST_NS, -json_fields.MOST_NS
        """Earliest start and latest end of all recorded steps and device operations."""
        self.steps: list[StepMark] = []
        self.ranges: dict[str, array[int]] = {"optimizer": array("q"), "data": array("q")}
        self.gloo: list[GlooOperation] = []
        self.host_calls: list[HostCall] = []
        self.nccl: list[NcclKernel] = []
        # Arrays of numbers: tuples would take five times the memory, gigabytes for the most events that are read.
        self.kernels, self.copies, self._launches = array("q"), array("q"), array("q")
        self._operators: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._gloo_threads: set[str] = set()
        self._groups: set[object] = set()

    def add(self, event: dict[str, Any]) -> None:
        """Add one event of `traceEvents` to the table; unknown kinds of events are skipped.

        Raises:
            UnreadableTrace: the event's times are out of bounds, or the trace has too many events of its kind.
        """
        if event.get("ph") != "X" or "ts" not in event or "dur" not in event:
            return
        category = json_fields.text(event.get("cat")).lower()
        category = _CATEGORIES.get(category, category)
        if category not in _READ_CATEGORIES:
            return
        self.events += 1
        pair = self._times(event)
        name, arguments = json_fields.text(event.get("name")), json_fields.mapping(event.get("args"))
        correlation = json_fields.count(arguments.get("correlation"))
        if category == "cuda_runtime":
            if correlation is not None:
                self._launches.extend((correlation, *pair))
        elif category == "cpu_op":
            self._add_operator(name, pair, json_fields.label(event.get("tid")), arguments)
        elif category == "range":
            self._add_range(name, pair, json_fields.label(event.get("tid")), arguments)
        elif category == "kernel" and is_collective_kernel(name):
            self._check_number("collectives", len(self.nccl), _MOST_COLLECTIVES)
            self._groups.add(nccl.group(arguments))
            self._check_number("process groups", len(self._groups), _MOST_GROUPS)
            self.nccl.append(nccl.kernel(pair, correlation, name, arguments))
            self._extend(pair)
        else:
            recorded = self.kernels if category == "kernel" else self.copies
            recorded.extend((*pair, _UNKNOWN if correlation is None else correlation))
            self._extend(pair)

    def work(self, recorded: "array[int]") -> Work:
        """Return kernels or copies with the host calls that launched them."""
        rows = np.asarray(recorded, dtype=np.int64).reshape(-1, 3)
        return Work(np.ascontiguousarray(rows[:, :2]), self.launches(rows[:, 2], rows[:, 0]))

    def launches(self, correlations: NDArray[np.int64], starts: NDArray[np.int64]) -> Spans:
        """Return the start and end of the host call that launched each kernel, found by its correlation id. If no such
        call was recorded, both are the kernel's own start."""
        calls = np.asarray(self._launches, dtype=np.int64).reshape(-1, 3)
        launched = np.stack((starts, starts), axis=1)
        if len(calls):
            calls = calls[np.argsort(calls[:, 0], kind="stable")]
            at = np.maximum(np.searchsorted(calls[:, 0], correlations, side="right") - 1, 0)
            is_launched = calls[at, 0] == correlations
            launched[is_launched] = calls[at[is_launched], 1:]
        return launched

    def operators(self) -> Work:
        """Return the operators of all threads but those of gloo, whose operators are parts of collectives."""
        own = [spans(pairs) for thread, pairs in self._operators.items() if thread not in self._gloo_threads]
        operators = np.concatenate(own) if own else spans(())
        return Work(operators, operators[:, [0, 0]])

    def bounds(self) -> Pair:
        """Return the start of the first event and the end of the last."""
        if self.first <= self.last:
            return self.first, self.last
        calls = np.asarray(self._launches, dtype=np.int64).reshape(-1, 3)
        return (int(calls[:, 1:].min()), int(calls[:, 1:].max())) if len(calls) else (0, 1)

    def _times(self, event: dict[str, Any]) -> Pair:
        start, length = json_fields.nanoseconds(event["ts"]), json_fields.nanoseconds(event["dur"])
        if start is None or length is None or abs(start + length) > json_fields.MOST_NS:
            raise UnreadableTrace(
                f"trace ({self._name}): ts ({json_fields.label(event['ts']):.40}) and dur ({json_fields.label(event['dur']):.40}) of event {self.events} "
                "must be microseconds; write the trace again, or leave it out"
            )
        return start, start + length

    def _add_operator(self, name: str, pair: Pair, thread: str, arguments: dict[str, Any]) -> None:
        if is_host_call(name):
            self._check_number("collectives", len(self.host_calls), _MOST_COLLECTIVES)
            self.host_calls.append(host_call(pair[0], name, arguments))
        elif computes(name):
            self._operators[thread].extend(pair)
            self._check_number("threads", len(self._operators), _MOST_THREADS)
            self._extend(pair)

    def _add_range(self, name: str, pair: Pair, thread: str, arguments: dict[str, Any]) -> None:
        if (step := _STEP.match(name)) is not None:
            self._check_number("steps", len(self.steps), _MOST_STEPS)
            self.steps.append(StepMark(int(step[1]), *pair))
            self._extend(pair)
        elif name.startswith("gloo:"):
            self._check_number("collectives", len(self.gloo), _MOST_COLLECTIVES)
            self.gloo.append(gloo_operation(*pair, name, arguments))
            self._gloo_threads.add(thread)
            self._extend(pair)
        elif is_optimizer(name):
            self.ranges["optimizer"].extend(pair)
        elif is_data(name):
            self.ranges["data"].extend(pair)

    def _extend(self, pair: Pair) -> None:
        self.first, self.last = min(self.first, *pair), max(self.last, *pair)

    def _check_number(self, what: str, number: int, most: int) -> None:
        if number >= most:
            raise UnreadableTrace(
                f"trace ({self._name}) has more than {most:,} {what}, the most that are read; record fewer steps "
                "(torch.profiler.schedule, active=3)"
            )
