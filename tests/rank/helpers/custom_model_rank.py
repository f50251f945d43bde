"""A rank that finds packages in a folder of its own; to be called in a fork."""

import os
import sys
from pathlib import Path

from shardtune.workers.launch import RESUMES
from shardtune.workers.rank import main
from shardtune.workers.trial_dir import TrialDir
from tests.rank.helpers.forked_children import fork_children
from tests.support.processes import preloaded_forks


def run_ranks(folder: Path, packages: Path) -> None:
    """Both ranks of a trial directory; in one that has been run, they go on in it."""
    resumes = (folder / "rank_0.json").exists()
    if resumes:
        TrialDir(folder).begin_resume_phase()
    preloaded_forks.ranks(_rank, folder, packages, logs=folder, environment={RESUMES: "1"} if resumes else None)


def _rank(folder: Path, packages: Path) -> None:
    sys.path.insert(0, str(packages))
    fork_children()
    main.run(folder)
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    sys.stderr.flush()
    os._exit(0)
