"""Child processes of a rank that answer one question: what they may see."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardtune.workers.rank.process import bounded_child

MODULE = """
import json, os, sys
answer = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR")}
open(sys.argv[1], "w").write(json.dumps(answer | {"question": sys.stdin.read()}))
"""


def test_a_child_of_a_rank_with_a_gpu_sees_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tells_its_devices.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    end = bounded_child.ask("tells_its_devices", b"which?", limit_s=60)
    assert end.code == 0
    assert json.loads(end.answer) == {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "question": "which?"}


def test_a_childs_peak_is_not_that_of_the_process_that_started_it() -> None:
    """A rank that starts a rehearsal has more memory than the rehearsal itself, and `ru_maxrss` outlives exec."""
    program = "from shardtune.workers.rank.process import bounded_child; print(bounded_child.peak_rss_mib())"
    ballast = bytearray(256 << 20)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(ballast) >> 20 > 2 * float(answer.stdout) > 0


def test_a_kernel_that_states_no_peak_costs_no_rehearsal(tmp_path: Path) -> None:
    """As gVisor's: its status files have VmSize, VmRSS and VmData alone."""
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmRSS:\t1024 kB\n")
    assert bounded_child.peak_rss_mib(status) > 1
    status.write_text("Name:\tpython\nVmHWM:\t2048 kB\nVmRSS:\t1024 kB\n")
    assert bounded_child.peak_rss_mib(status) == 2.0
