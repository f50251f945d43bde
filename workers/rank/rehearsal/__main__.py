"""`python -m shardtune.workers.rank.rehearsal < TASK`: rehearse one rank of a `RehearsalTask`, and print a
`RehearsalAnswer` as the last line.

The owner bounds its time and ends it; this process bounds its memory.
"""

import os
import sys
import warnings

from shardtune.api_schemas.trials.rehearsals import RehearsalAnswer, RehearsalTask
from shardtune.workers.rank.own_code.trace_process import limit_memory
from shardtune.workers.rank.rehearsal import problems, rank_steps, support

_MOST_MEMORY = 2 << 30
"""Bytes that a rehearsal may allocate beyond the libraries that are loaded; it needs about a tenth."""


def answer(task: RehearsalTask) -> RehearsalAnswer:
    """Rehearse the task's rank, or say why that is impossible."""
    obstacle = support.obstacle(task.trial)
    if obstacle is not None:
        return RehearsalAnswer(problem=problems.unsupported(*obstacle))
    try:
        return RehearsalAnswer(seen=rank_steps.rehearse(task))
    except Exception as error:  # noqa: BLE001 -- a border: every exception becomes the reason of the answer
        return RehearsalAnswer(problem=problems.problem_of(error))


def main() -> None:
    """Print the answer for the task on standard input."""
    task = RehearsalTask.model_validate_json(sys.stdin.read())
    limit_memory(_MOST_MEMORY)
    warnings.simplefilter("ignore")
    # Libraries print while they build; the answer is the last line.
    print("\n" + answer(task).model_dump_json(), flush=True)
    sys.stderr.flush()
    # Threads of torch must not keep this process.
    os._exit(0)


if __name__ == "__main__":
    main()
