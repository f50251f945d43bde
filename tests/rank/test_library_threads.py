"""Threads that libraries start at import: which of them keep the fork server from forking ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>
static int pause_us;
static void *live(void *nothing) { for (;;) { if (pause_us) usleep(pause_us); else pause(); } return nothing; }
void start(int us, const char *name) {
    pthread_t thread; pause_us = us; pthread_create(&thread, 0, live, 0); pthread_setname_np(thread, name);
}
"""

LOOK = """
import ctypes, json, sys, threading, time
from shardtune.workers.rank.fork_server import threads
if sys.argv[1] == "python":
    threading.Thread(target=time.sleep, args=(5,), name="reader", daemon=True).start()
else:
    ctypes.CDLL(sys.argv[3]).start(int(sys.argv[1]), sys.argv[2].encode())
    time.sleep(0.05)
print(json.dumps(threads.that_forbid_forking()), flush=True)
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
    ("pause_us", "name", "forbid"),
    [
        ("0", "cuda00001800007", []),
        ("1000", "cuda00001800007", ["cuda00001800007"]),
        ("0", "pool", ["pool"]),
        ("python", "", ["reader"]),
    ],
    ids=["driver-sleeps", "driver-runs", "other-sleeps", "python"],
)
def test_only_a_sleeping_thread_of_the_driver_lets_ranks_be_forked(
    library: Path, pause_us: str, name: str, forbid: list[str]
) -> None:
    """Ranks on an H200 were forked beside such a thread, which DeepSpeed's imports start."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, pause_us, name, str(library)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == forbid
