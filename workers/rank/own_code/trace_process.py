"""Process that traces a step of the user's own code, bounded in time and memory, and ended with the process that
started it.

`python -m shardtune.workers.rank.own_code.trace_process ANSWER < TASK`: TASK is a `ModelSummaryTask`, ANSWER the file for
a `StepTrace` or a `TraceFailure`. A failed trace costs a study its predictions, never its trials.
"""

import json
import os
import resource
import sys
import warnings
from pathlib import Path

from pydantic import ValidationError

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.step_trace import StepTrace, TraceFailure
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import ModelSummaryTask
from shardtune.workers.rank.own_code import failures, trace_step
from shardtune.workers.rank.process import bounded_child, parent_death
from shardtune.workers.rank.training import step as steps

LIMIT_S = 120.0
"""Time limit in seconds for tracing one step of a user's model, with the time to import libraries."""
_MOST_MEMORY = 8 << 30
_LEAST_MEMORY = 1 << 30


def trace(spec: ModelSpec, workload: Workload, limit_s: float = LIMIT_S) -> StepTrace | TraceFailure:
    """Trace a step of the user's own code in a process of its own."""
    task = ModelSummaryTask(model=spec, workload=workload).model_dump_json().encode()
    end = bounded_child.ask("shardtune.workers.rank.own_code.trace_process", task, limit_s)
    if end.code is None:
        return TraceFailure(code="time", message=f"tracing one step took more than {limit_s:.0f} s")
    return _read(end)


def _read(end: bounded_child.ChildEnd) -> StepTrace | TraceFailure:
    """Read the result of a tracing process that has ended."""
    try:
        content = json.loads(end.answer)
        if "trace" in content:
            return StepTrace.model_validate(content["trace"])
        return TraceFailure.model_validate(content["failure"])
    except (ValueError, ValidationError, KeyError, TypeError):
        message = f"the process that traced one step ended {end.described} without an answer"
        return TraceFailure(code="crashed", message=message)


def limit_memory(most: int = _MOST_MEMORY) -> None:
    """Limit the memory of this process to what it has now plus the given number of bytes."""
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    limit = max(_LEAST_MEMORY, min(most, pages * size // 2))
    # Beyond what is mapped already: torch's libraries count as well.
    mapped = int(Path("/proc/self/statm").read_text().split()[5]) * size
    bound = limit + mapped
    # The process that started this one may be bounded already, and only root may raise a hard limit.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def main() -> int:
    """Trace the step of the task that standard input contains, and write the result into the file that the first
    argument names."""
    parent_death.tie_to_parent()
    task = ModelSummaryTask.model_validate_json(sys.stdin.read())
    limit_memory()
    warnings.simplefilter("ignore")
    try:
        traced = trace_step.trace(steps.of(task.model, task.workload), task.workload)
        content = {"trace": traced.model_dump(mode="json")}
    # BaseException: the user's code may leave by sys.exit.
    except BaseException as error:  # noqa: BLE001 -- a border: the user's code may raise anything
        content = {"failure": failures.failure_of(error).model_dump(mode="json")}
    Path(sys.argv[1]).write_text(json.dumps(content))
    sys.stderr.flush()
    # Threads of the user's code must not keep this process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
