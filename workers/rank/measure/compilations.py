"""Counting of what Dynamo compiled in this process."""

import importlib
import sys
from typing import NamedTuple

from shardtune.api_schemas.trials.measurements import CompiledFrames


class Compilations(NamedTuple):
    """Numbers since the start of the process."""

    frames: int
    recompilations: int
    graph_breaks: int


NOTHING = Compilations(0, 0, 0)
"""Numbers of a process that has compiled nothing."""


_MOST_RECORDS = 100_000
"""Maximum number of compilations whose records Dynamo keeps, far more than a trial has."""


def keep_records() -> None:
    """Make Dynamo keep the record of every compilation, which says whether it was a recompilation.

    By default it keeps the newest 64 only (torch 2.13), and each compiled backward is one of them: ZeRO-3, whose hooks
    end a graph between the layers of every block, compiles more in the first step of a deep model.
    """
    importlib.import_module("torch._dynamo.utils").set_compilation_metrics_limit(_MOST_RECORDS)


def count() -> Compilations:
    """Count compiled frames, recompilations and graph breaks so far."""
    # Without a compilation so far, Dynamo's import would take a second.
    if "torch._dynamo.utils" not in sys.modules:
        return NOTHING
    dynamo = sys.modules["torch._dynamo.utils"]
    records = dynamo.get_compilation_metrics()
    return Compilations(
        # From the records, as the recompilations: Dynamo's counter of frames omits those of `fullgraph=True` (torch 2.13).
        frames=sum(bool(record.has_guarded_code) for record in records),
        recompilations=sum(record.recompile_reason is not None for record in records),
        graph_breaks=sum(dynamo.counters["graph_break"].values()),
    )


def since(before_timing: Compilations) -> CompiledFrames:
    """Numbers of the whole run, of which `before_timing` preceded the timed steps."""
    now = count()
    return CompiledFrames(
        frames=now.frames,
        recompilations=now.recompilations,
        graph_breaks=now.graph_breaks,
        # Own code may clear Dynamo's records meanwhile.
        while_timed=max(0, now.frames - before_timing.frames),
    )
