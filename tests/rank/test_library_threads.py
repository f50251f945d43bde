"""Threads that libraries start at import: which of them keep the fork server from forking ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
#include <pthread.h>
#include <unistd.h>
static int pause_us;
static void *live(void *nothing) { for (;;) { if (pause_us) usleep(pause_us); else pause(); } return nothing; }
void start(int us) { pthread_t thread; pause_us = us; pthread_create(&thread, 0, live, 0); }
"""

LOOK = """
import ctypes, json, sys, threading, time
from shardtune.workers.rank.fork_server import threads
if sys.argv[1] == "python":
    threading.Thread(target=time.sleep, args=(5,), name="reader", daemon=True).start()
else:
    ctypes.CDLL(sys.argv[2]).start(int(sys.argv[1]))
    time.sleep(0.05)
print(json.dumps(threads.that_may_hold_locks()), flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    (folder / "threads.c").write_text(LIBRARY)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", folder / "threads.so", folder / "threads.c", "-lpthread"], check=True
    )
    return folder / "threads.so"


@pytest.mark.parametrize(
    ("thread", "names"),
    [("0", []), ("1000", ["python"]), ("python", ["reader"])],
    ids=["sleeps", "runs", "of-python"],
)
def test_only_a_thread_that_may_hold_a_lock_forbids_forking(library: Path, thread: str, names: list[str]) -> None:
    """NVIDIA's driver (580) starts a thread that sleeps, where DeepSpeed's imports load it: ranks on an H200 were forked
    beside it."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, thread, str(library)], capture_output=True, text=True, check=True
    )
    assert [name[: len("python")] for name in json.loads(done.stdout)] == names
