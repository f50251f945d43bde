"""A forked rank has the environment its configuration asks for, though its libraries were loaded before."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ranks

_FORKED = """
import ctypes, json, os, torch
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.process import environment

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident_after_a_free():
    # Written to, freed, and looked at: pages of a block that went back to the system are no longer resident.
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def told(**knobs):
    if os.fork() == 0:
        before = resident_after_a_free()
        environment.apply(TrialConfig(strategy=DdpConfig(), **knobs), RankContext.from_environment("cpu"))
        kept = resident_after_a_free() - before > 32 << 20
        print(json.dumps([torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], kept]), flush=True)
        os._exit(0)
    os.wait()

os.environ["LOCAL_WORLD_SIZE"] = str(len(os.sched_getaffinity(0)))
told()
told(malloc="keep", threads=3)
"""


def test_threads_and_malloc_take_effect_in_a_fork() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=120, env=_plain())
    assert done.returncode == 0, done.stderr
    plain, set_ = map(json.loads, done.stdout.splitlines())
    assert plain == [1, "1", False]
    assert set_ == [3, "3", True]


def _plain() -> dict[str, str]:
    """Environment without variables that would decide instead."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MALLOC_"))}
