"""Accelerator that DeepSpeed gets in a rank that was started by hand, without an agent that names it."""

import subprocess
import sys

import pytest

IMPORT = """
import os, pathlib, sys
exists = pathlib.Path.exists
drivers = ("/dev/nvidiactl", "/dev/dxg")
pathlib.Path.exists = lambda path: str(path) == sys.argv[1] if str(path) in drivers else exists(path)
import shardtune.workers.rank
print(os.environ.get("DS_ACCELERATOR"))
"""


@pytest.mark.parametrize(
    ("driver", "visible", "accelerator"),
    [
        ("none", None, "cpu"),
        ("/dev/nvidiactl", None, "None"),
        ("/dev/dxg", None, "None"),
        ("/dev/dxg", "", "cpu"),
    ],
)
def test_a_rank_by_hand_is_left_its_gpu_on_linux_and_on_wsl2(
    monkeypatch: pytest.MonkeyPatch, driver: str, visible: str | None, accelerator: str
) -> None:
    """WSL2 has no nvidiactl: with `cpu` DeepSpeed would train beside the GPU that torch uses."""
    for name in ("DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    child = subprocess.run([sys.executable, "-c", IMPORT, driver], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == accelerator
