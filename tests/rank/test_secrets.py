"""Processes that run other people's models find no secret of the worker: not in its environment, and not in the
agent's."""

import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.long_run import wide
from tests.support.processes.command_line import words_of
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

ENDLESS = tiny_task({"kind": "ddp"}, parity_steps=2, min_windows=100_000, max_windows=100_000)
SECRETS = {
    "SHARDTUNE_API_KEY": "shardtune_kanarienvogel",
    "SHARDTUNE_DATABASE_URL": "postgresql://me:kanarienvogel@nowhere/x",
    "SHARDTUNE_SECRET_KEY": "kanarienvogel" * 4,
}


@pytest.mark.parametrize(("start", "processes"), [("--cold", 2), ("--no-build-operators", 3)])
def test_no_process_of_a_trial_shows_the_key(tmp_path: Path, start: str, processes: int) -> None:
    """`/proc/PID/environ` of the agent is what it was started with, and its ranks have its user."""
    (tmp_path / "trial.json").write_text(ENDLESS.model_dump_json())
    command = [sys.executable, "-m", "shardtune.workers", "run-trial", str(tmp_path / "trial.json"), start]
    with (tmp_path / "log").open("w") as log:
        agent = psutil.Popen([*command, "--work-dir", str(tmp_path / "work")], env=os.environ | SECRETS, stderr=log)
    try:
        ranks = _ranks(agent, processes)
        shown = [Path(f"/proc/{process.pid}/environ").read_bytes() for process in ranks]
        assert all(b"RANK=" in text or b"SHARDTUNE_POOL=" in text for text in shown)
        assert [text.count(b"kanarienvogel") for text in shown] == [0] * len(shown)
        own = Path(f"/proc/{agent.pid}/environ").read_bytes()
        assert b"shardtune_kanarienvogel" not in own and b"PATH=" in own
    finally:
        agent.terminate()
        agent.wait(timeout=60)


@pytest.mark.parametrize(("start", "processes"), [wide("--cold", 2), ("--no-build-operators", 3)])
def test_no_process_of_a_trial_has_the_descriptor_of_the_key_or_its_variable(
    tmp_path: Path, start: str, processes: int
) -> None:
    """A descriptor above the standard ones, as on rented machines; ranks could read what is left in its pipe.

    The agent closes it before it starts any process; cold ranks are asked for in the long run.
    """
    (tmp_path / "trial.json").write_text(ENDLESS.model_dump_json())
    command = [sys.executable, "-m", "shardtune.workers", "run-trial", str(tmp_path / "trial.json"), start]
    pipe, written = os.pipe()
    os.write(written, b"shardtune_kanarienvogel\n")
    os.close(written)
    name = str(Path(f"/proc/self/fd/{pipe}").readlink())
    environment = os.environ | {"SHARDTUNE_API_KEY_FD": str(pipe)}
    with (tmp_path / "log").open("w") as log:
        agent = psutil.Popen(
            [*command, "--work-dir", str(tmp_path / "work")], env=environment, stderr=log, pass_fds=[pipe]
        )
    try:
        ranks = _ranks(agent, processes)
        assert os.read(pipe, 100) == b"", "the agent has read it to its end"
        for process in (agent, *ranks):
            assert name not in _open_files(process.pid)
        for process in ranks:
            assert b"SHARDTUNE_API_KEY_FD" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    finally:
        os.close(pipe)
        agent.terminate()
        agent.wait(timeout=60)


def _open_files(pid: int) -> list[str]:
    """What each descriptor of a process names."""
    names = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.append(str(descriptor.readlink()))
    assert names
    return names


def _ranks(agent: psutil.Process, count: int) -> list[psutil.Process]:
    """Everything that runs below the agent, once its look at the libraries is over and there are so many processes of ranks."""
    ends_s = time.monotonic() + 120
    while time.monotonic() < ends_s:
        below = agent.children(recursive=True)
        words = {process: text for process in below if (text := " ".join(words_of(process)))}
        ours = [text for text in words.values() if "shardtune.workers.rank" in text and "parent_death" not in text]
        if len(ours) >= count and not any("rank.inventory" in text for text in ours):
            return list(words)
        time.sleep(0.1)
    raise AssertionError("the ranks did not start in time")
