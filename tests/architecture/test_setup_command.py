"""Installation on a GPU host with nothing but a driver, as `make setup` and the pages for pip describe it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GPU_WITHOUT_TOOLKIT = """
import json, os, sys
import torch
import torch.utils.cpp_extension
# What torch reports on a host with a driver, a CUDA wheel, and neither nvcc nor /usr/local/cuda.
torch.cuda.is_available, torch.version.cuda, torch.utils.cpp_extension.CUDA_HOME = lambda: True, "13.0", None
torch.cuda.get_device_properties = lambda _: type("Properties", (), {"major": 9, "minor": 0})
from deepspeed.ops.op_builder.all_ops import ALL_OPS
for variables in json.loads(sys.argv[1]):
    os.environ.pop("DS_IGNORE_CUDA_DETECTION", None)
    os.environ.update(variables)
    try:
        # As DeepSpeed's setup.py does for its record of compatible operators (0.19.8, line 160).
        [name for name, builder in ALL_OPS.items() if builder.is_compatible()]
    except Exception as error:
        print("ERROR", type(error).__name__, error)
    else:
        print("ERROR")
"""
"""Program that checks DeepSpeed's operators under each of several settings: importing it takes most of the time."""


def test_setup_installs_deepspeed_where_a_gpu_is_visible_and_no_cuda_toolkit_is_there() -> None:
    command = ["make", "--dry-run", "--always-make", ".venv/.ready"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    install = next(line for line in lines if "worker" in line)
    as_installed, without_the_variable = _operator_errors(_assignments(install), {})
    assert as_installed == "" and "MissingCUDAException" in without_the_variable


def test_each_page_that_installs_the_worker_by_pip_sets_the_variable() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "deploy").rglob("*.md")]
    commands = [
        line
        for page in pages
        for line in page.read_text().splitlines()
        if re.match(r"\S*.*pip install .*worker\b", line)
    ]
    shell = [line for line in commands if not line.startswith(("#", "|"))]
    assert shell and all(_assignments(line) == {"DS_IGNORE_CUDA_DETECTION": "1"} for line in shell), shell


def _assignments(command: str) -> dict[str, str]:
    """Variables that a shell command sets for itself."""
    words = shlex.split(command, comments=True)
    assignments = [(name, value) for name, _, value in (word.partition("=") for word in words) if name.isupper()]
    return dict(assignments)


def _operator_errors(*settings: dict[str, str]) -> list[str]:
    """Error of DeepSpeed's operator checks under each setting; empty where they pass."""
    child = subprocess.run(
        [sys.executable, "-c", GPU_WITHOUT_TOOLKIT, json.dumps(settings)],
        env=os.environ | {"DS_ACCELERATOR": "cuda"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.removeprefix("ERROR").strip() for line in child.stdout.splitlines() if line.startswith("ERROR")]
