"""Process that traces a step of the user's own code, bounded in time and memory, and ended with the process that
started it.

`python -m shardtune.workers.rank.own_code.trace_process ANSWER < TASK`: TASK is a `ModelSummaryTask`, ANSWER the file for
a `StepTrace` or a `TraceFailure`. A failed trace costs a study its predictions, never its trials.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.step_trace import StepTrace, TraceFailure
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import ModelSummaryTask
from shardtune.workers.rank.own_code import failures, trace_step
from shardtune.workers.rank.process import parent_death
from shardtune.workers.rank.training import step as steps

LIMIT_S = 120.0
"""Seconds after which a trace is ended, imports included."""
_MOST_MEMORY = 8 << 30
_LEAST_MEMORY = 1 << 30
_LONGEST_ANSWER = 1 << 20
_POLL_S = 0.05


def trace(spec: ModelSpec, workload: Workload, limit_s: float = LIMIT_S) -> StepTrace | TraceFailure:
    """Trace a step of the user's own code in a process of its own."""
    task = ModelSummaryTask(model=spec, workload=workload).model_dump_json().encode()
    # Files without a name: nothing stays where this process is killed.
    with os.fdopen(os.memfd_create("task"), "w+b") as question, os.fdopen(os.memfd_create("answer"), "w+b") as answer:
        question.write(task)
        question.seek(0)
        code = _run(question, answer, limit_s)
        if code is None:
            return TraceFailure(code="time", message=f"tracing one step took more than {limit_s:.0f} s")
        answer.seek(0)
        return _read(answer.read(_LONGEST_ANSWER), code)


def _run(question: BinaryIO, answer: BinaryIO, limit_s: float) -> int | None:
    """Exit code of a process that traces; None where it took too long. Ends all that the code started, too."""
    command = [
        sys.executable,
        # Else a `types.py` beside the study would be imported in place of Python's.
        "-P",
        "-m",
        "shardtune.workers.rank.own_code.trace_process",
        f"/proc/self/fd/{answer.fileno()}",
    ]
    # The entry point may lie on a path that this process was given after its start.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, parent_death.PARENT_VARIABLE: str(os.getpid())}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stdin=question,
        # What the code prints goes to the log: standard output may carry this process's own answer.
        stdout=sys.stderr.fileno(),
        env=environment,
        pass_fds=[answer.fileno()],
        start_new_session=True,
    )
    try:
        has_ended = _wait(process.pid, limit_s)
    finally:
        # Before the process is reaped: until then no other group can have its number.
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    return code if has_ended else None


def _wait(pid: int, limit_s: float) -> bool:
    """Whether a child ends in time; it is not reaped."""
    deadline = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _read(answer: bytes, code: int) -> StepTrace | TraceFailure:
    """Read the answer of a process that has ended with an exit code."""
    try:
        content = json.loads(answer)
        if "trace" in content:
            return StepTrace.model_validate(content["trace"])
        return TraceFailure.model_validate(content["failure"])
    except (ValueError, ValidationError, KeyError, TypeError):
        ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return TraceFailure(code="crashed", message=f"the process that traced one step ended {ended} without an answer")


def limit_memory(most: int = _MOST_MEMORY) -> None:
    """Bound the memory that this process can allocate, to at most this number of bytes beyond what it has."""
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
    """Trace the step of the task on standard input, and write the answer into the file that the argument names."""
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
