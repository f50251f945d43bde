"""`python -m shardtune.workers.rank.rehearsal [ANSWER] < TASK`: rehearse one rank of a `RehearsalTask`, and write a
`RehearsalAnswer` into the file ANSWER, or print it as the last line.

The owner bounds its time and ends it; this process bounds its memory.
"""

import os
import sys
import warnings
from pathlib import Path

from shardtune.api_schemas.trials import rehearsal_support
from shardtune.api_schemas.trials.leases import RehearsalTask
from shardtune.api_schemas.trials.rehearsals import RehearsalAnswer
from shardtune.workers.rank.own_code.trace_process import limit_memory
from shardtune.workers.rank.process import parent_death
from shardtune.workers.rank.rehearsal import problems, rank_steps

MOST_MEMORY = 2 << 30
"""Maximum bytes that a rehearsing process (which runs one rank's step on tensors without values) may allocate after it
has loaded its libraries. It usually needs about a tenth of them."""


def answer(task: RehearsalTask) -> RehearsalAnswer:
    """Rehearse the task's rank: build it and run its step on tensors without values. Returns the result, or the reason
    why that is impossible."""
    obstacle = rehearsal_support.obstacle(task.trial)
    if obstacle is not None:
        return RehearsalAnswer(problem=obstacle)
    try:
        return RehearsalAnswer(seen=rank_steps.rehearse(task))
    except Exception as error:  # noqa: BLE001 -- a border: every exception becomes the reason of the answer
        return RehearsalAnswer(problem=problems.problem_of(error))


def main() -> None:
    """Read a rehearsal task (one rank's step on tensors without values) from standard input, run it, and write its
    result."""
    task = RehearsalTask.model_validate_json(sys.stdin.read())
    if len(sys.argv) > 1:
        # A rank started this process; the command line has a parent-death signal of its own.
        parent_death.tie_to_parent()
    limit_memory(MOST_MEMORY)
    warnings.simplefilter("ignore")
    text = answer(task).model_dump_json()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        # Libraries print while they build; the answer is the last line.
        print("\n" + text, flush=True)
    sys.stderr.flush()
    # Threads of torch must not keep this process.
    os._exit(0)


if __name__ == "__main__":
    main()
