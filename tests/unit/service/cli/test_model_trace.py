"""Counting the user's own code: what the code leaves running neither keeps the command waiting nor outlives it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardtune.service.cli.predict import bounded_process

_LEAVES_A_CHILD = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
open(sys.argv[1], "w").write(str(child))
print("answer")
"""


@pytest.mark.parametrize("detaches", ["pass", "os.setsid()"])
def test_a_process_that_the_code_left_behind_is_ended_with_it(detaches: str, tmp_path: Path) -> None:
    script = _LEAVES_A_CHILD.replace("time.sleep", f"{detaches}; time.sleep")
    code, output, errors = bounded_process.run([sys.executable, "-c", script, str(tmp_path / "pid")], "", limit_s=60)
    assert (code, output.strip(), errors) == (0, "answer", "")
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        pytest.fail("the child is still there")


def test_code_that_takes_too_long_is_ended_with_what_it_detached(tmp_path: Path) -> None:
    script = _LEAVES_A_CHILD.replace("time.sleep", "os.setsid(); time.sleep") + "sys.stdout.flush(); time.sleep(60)\n"
    with pytest.raises(subprocess.TimeoutExpired):
        bounded_process.run([sys.executable, "-c", script, str(tmp_path / "pid")], "", limit_s=3)
    child = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{child}").exists()
