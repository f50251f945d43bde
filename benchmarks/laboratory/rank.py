"""One rank of the laboratory: imports torch once, then forks a child for each task that it reads from its input.

A task is one line of JSON, and so is the answer. The end of the input ends the rank and its child.
"""

import ctypes
import datetime
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from benchmarks.laboratory.training import step_of
from shardtune.workers.rank.measure import hardware
from shardtune.workers.rank.rank_context import RankContext

HARDWARE = "hardware"
"""Task that measures rates and collectives as a worker does, instead of a program."""
TASK_LIMIT_S = 900
_PRIORITY = -10
"""Priority of ranks over other programs: they only wait, and a late wake-up of one delays all."""
_WARM_UP = 2
_GLOO_TIMEOUT = datetime.timedelta(minutes=3)
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve tasks until the input ends."""
    # Libraries print to the standard output, which carries the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    _answer(answers, {"is_ready": True})
    while line := sys.stdin.buffer.readline():
        child = os.fork()
        if child == 0:
            _run_and_exit(json.loads(line), answers)
        code = _wait(child)
        if code is None:
            return 0
        if code:
            _answer(answers, {"error": f"ended with code {code}"})
    return 0


def _answer(answers: BinaryIO, values: dict[str, Any]) -> None:
    answers.write(json.dumps(values).encode() + b"\n")


def _wait(child: int) -> int | None:
    """Exit code of a child; None where the input ended first, which ends the child, too."""
    handle, events = os.pidfd_open(child), select.poll()
    events.register(handle, select.POLLIN)
    # The next task may be there already; only the hang-up, which needs no registration, says that nobody listens.
    events.register(sys.stdin, 0)
    is_abandoned = handle not in dict(events.poll())
    os.close(handle)
    if is_abandoned:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return None if is_abandoned else os.waitstatus_to_exitcode(status)


def _run_and_exit(task: dict[str, Any], answers: BinaryIO) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.alarm(TASK_LIMIT_S)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    try:
        os.environ.update(task["environment"])
        dist.init_process_group("gloo", timeout=_GLOO_TIMEOUT)
        _answer(answers, _hardware() if task["program"] == HARDWARE else _timed(task))
        dist.barrier()
    except Exception:  # noqa: BLE001 (a fork that left this function would serve tasks, too)
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def _hardware() -> dict[str, Any]:
    return hardware.measure(RankContext.from_environment("cpu")).model_dump(mode="json")


def _timed(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each step, and cores that the rank used during them."""
    step = step_of(task["program"], task["slowness"])
    for _ in range(_WARM_UP):
        step()
    dist.barrier()
    times, began_s, used_s = [], time.perf_counter(), _processor_seconds()
    for _ in range(task["steps"]):
        begin = time.perf_counter()
        step()
        times.append(round(time.perf_counter() - begin, 5))
    cores = (_processor_seconds() - used_s) / (time.perf_counter() - began_s)
    return {"seconds": times, "cores": round(cores, 4)}


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
