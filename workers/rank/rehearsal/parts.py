"""Rehearsal of a study's configuration by a rank of its worker: one bounded process for each part of the task."""

import time

import psutil
from pydantic import ValidationError

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.trials.leases import RehearsalTask, TargetRehearsalTask
from shardtune.api_schemas.trials.rehearsals import RehearsalAnswer, RehearsalCode, RehearsalProblem, RehearsalReport
from shardtune.workers.rank.process import bounded_child

_MODULE = "shardtune.workers.rank.rehearsal"
LEAST_FREE = 1 << 30
"""Bytes of memory that a host must have free before a rehearsing process starts (one that runs a rank's step on tensors
without values). The process takes up to 0.5 GiB for a model of 70B parameters."""


def rehearse(task: TargetRehearsalTask, least_free: int = LEAST_FREE) -> RehearsalReport:
    """Rehearse the parts of a task one after the other, each as one rank on tensors without values; stop at the first
    problem."""
    begin = time.monotonic()
    answers: list[RehearsalAnswer] = []
    for part in task.parts:
        answers.append(_shortage(least_free) or ask(part, task.part_limit_s))
        if answers[-1].problem is not None:
            break
    return RehearsalReport(answers=tuple(answers), elapsed_s=round(time.monotonic() - begin, 2))


def ask(part: RehearsalTask, limit_s: float, module: str = _MODULE) -> RehearsalAnswer:
    """Result of one rehearsing process (which builds and steps one rank on tensors without values). A process that
    takes too long, or ends without a result, also counts as a problem."""
    end = bounded_child.ask(module, part.model_dump_json().encode(), limit_s)
    if end.code is None:
        return _problem("time", f"rehearsing rank {part.rank} took more than {limit_s:g} s")
    try:
        return RehearsalAnswer.model_validate_json(end.answer)
    except ValidationError:
        return _problem(
            "crashed", f"the process that rehearsed rank {part.rank} ended {end.described} without an answer"
        )


def _shortage(least_free: int) -> RehearsalAnswer | None:
    """Problem to report if the host has too little free memory for a rehearsal (a trial step on tensors without
    values); None if it has enough."""
    # Such a process would end another program, or be ended, by the kernel; nothing of the study is worth that.
    free = psutil.virtual_memory().available
    if free >= least_free:
        return None
    need = f"a rehearsal needs {memory(least_free / GIB)} of free memory, and this host has {memory(free / GIB)}"
    return _problem("memory", f"{need}; end other programs, or run `shardtune rehearse` on another machine")


def _problem(code: RehearsalCode, message: str) -> RehearsalAnswer:
    return RehearsalAnswer(problem=RehearsalProblem(code=code, message=message))
