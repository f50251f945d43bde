"""CPU time of a rank: what it started is no other program."""

import subprocess
import sys

import pytest

from shardtune.workers.rank.process import cpu_time

BURN = "import time; begin = time.process_time()\nwhile time.process_time() - begin < 0.5: pass\n"
TELL = "import sys; print(flush=True); sys.stdin.read()\n"


def test_ended_and_living_processes_below_a_rank_count_as_its_own() -> None:
    before_s = cpu_time.spent_s()
    # As a compiler that the rank waits for.
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after_s = cpu_time.spent_s()
    assert after_s - before_s >= 0.45
    # As torch's pool of compilers: a process below a process, both alive when the rank reports.
    pool = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN + TELL!r}])"
    with subprocess.Popen([sys.executable, "-c", pool], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None and running.stdout is not None
        running.stdout.readline()
        assert cpu_time.spent_s() - after_s >= 0.45
        running.stdin.close()


def test_what_the_fork_server_did_for_the_launch_counts_as_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    before_s = cpu_time.spent_s()
    monkeypatch.setenv(cpu_time.PREPARATION_VARIABLE, "100.500")
    assert 100.4 < cpu_time.spent_s() - before_s < 110.0
