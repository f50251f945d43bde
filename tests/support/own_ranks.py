"""`python own_ranks.py DIR …`: forks the two ranks of each trial, in an interpreter that finds packages on its path.

A directory that is named again gets ranks that go on in it.
"""

import os
import sys
from pathlib import Path

from shardtune.workers.rank import main
from shardtune.workers.trial_dir import TrialDir


def run_ranks(folder: Path, ranks: int = 2) -> None:
    if (folder / "rank_0.json").exists():
        TrialDir(folder).begin_resume_phase()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ.update({key: str(value) for key, value in place.items()})
            os._exit(main.run(folder))
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        run_ranks(Path(folder))
