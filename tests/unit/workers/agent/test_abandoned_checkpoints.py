"""Checkpoints of killed agents, the largest files of all, are removed by later agents."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.trials.leases import ResumeTask, TrialTask
from shardtune.workers import leftovers
from shardtune.workers.agent import resume_phases
from shardtune.workers.agent.supervise import RanksEnd, RunLimits
from shardtune.workers.trial_dir import TrialDir
from tests.support.workers.agent_world import World

DAY = 86400.0
RUN, OTHER, OLD, LARGE = (f"run-{letter * 16}" for letter in "abcd")


def checkpoint(path: Path, unused_s: float = 0.0) -> Path:
    """Make a folder with a file in it, both last changed so many seconds ago."""
    path.mkdir(parents=True)
    (path / "weights").touch()
    for changed in (path / "weights", path):
        os.utime(changed, (time.time() - unused_s,) * 2)
    return path


def test_a_shared_folder_keeps_only_checkpoints_that_may_be_in_use(tmp_path: Path) -> None:
    """A worker over several hosts that was killed during its resume check left terabytes on the shared disk for good."""
    for name in (f"{RUN}-1", f"{RUN}-2", f"{RUN}-3", f"{RUN}-4", f"{RUN}-10", f"{OTHER}-1"):
        checkpoint(tmp_path / name)
    checkpoint(tmp_path / f"{OLD}-1", 8 * DAY)
    # A check of 405 billion parameters may save and load for 36 hours at 100 MB/s.
    checkpoint(tmp_path / f"{LARGE}-1", 2 * DAY)
    leftovers.remove_checkpoints(tmp_path, f"{RUN}-3")
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {f"{RUN}-3", f"{RUN}-4", f"{RUN}-10", f"{OTHER}-1", f"{LARGE}-1"}


@pytest.mark.parametrize("name", ["node", "my-checkpoints", "results-2", "run-1", f"copy-of-{OLD}-1", f"{OLD}-1-kept"])
def test_folders_that_no_resume_check_made_stay_however_old_they_are(tmp_path: Path, name: str) -> None:
    """The folder of this user may hold what is not ours: where TMPDIR is the shared folder, trial directories of hosts, too."""
    checkpoint(tmp_path / name, 400 * DAY)
    leftovers.remove_checkpoints(tmp_path, f"{RUN}-3")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["trial", "trial-1"])
def test_a_name_that_a_user_chose_removes_no_other_run(tmp_path: Path, name: str) -> None:
    """`run-trial --folder trial-1` removed the checkpoint of `run-trial --folder trial-0`, which ran beside it."""
    for folder in ("trial", "trial-0"):
        checkpoint(tmp_path / folder)
    leftovers.remove_checkpoints(tmp_path, name)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_next_resume_check_over_hosts_removes_them(
    tmp_path: Path, task: TrialTask, fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    killed = checkpoint(shared / f"shardtune-{os.geteuid()}" / f"{RUN}-1")
    killed.parent.chmod(0o700)
    over_hosts = task.model_copy(update={"cluster": task.cluster.model_copy(update={"nodes": 2})})
    restart = ResumeTask(trial=over_hosts)
    directory = TrialDir.create(tmp_path / "work", f"{RUN}-2", restart, fingerprint, 0)
    ended = RanksEnd((), "deadline", "", 0.0, 0.0)
    monkeypatch.setattr(resume_phases, "supervise", lambda *_: ended)
    launcher: Any = None
    resume_phases.run_to_end(launcher, restart, directory, 2, RunLimits(1, 1), lambda: None, shared)
    assert not killed.exists()


def test_an_agent_makes_room_before_it_looks_for_work(tmp_path: Path, warm: Any, task: TrialTask) -> None:
    """A checkpoint that filled the disk kept each later agent from starting, which removes such checkpoints only after
    a run."""
    killed = checkpoint(tmp_path / "run-1" / "checkpoint")
    (tmp_path / "run-1" / "task.json").write_text("{}")
    world = World(tmp_path, warm(), task, until=lambda _: True)
    world.agent.run()
    world.service.close()
    assert not killed.exists()
