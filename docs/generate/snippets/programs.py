"""Runs blocks of Python, each in a process and an empty folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

from docs.generate.sources import ROOT

_LIMIT_S = 120


def compile_problem(text: str) -> str:
    """Why Python does not compile a block."""
    try:
        compile(text, "snippet", "exec")
    except SyntaxError as error:
        return f"is not Python: line {error.lineno}: {error.msg}"
    return ""


def run_problem(text: str, folder: Path) -> str:
    """Why a block fails when it runs in `folder`: the end of what it wrote to stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    return "" if ran.returncode == 0 else "does not run: " + ran.stderr.strip()[-2000:]
