"""Exported files that train on CPU ranks: one script is started by its launch.sh and torchrun, the others are the very files
in forks that have torch imported."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.export import files
from tests.support.processes import preloaded_forks
from tests.support.values.synthetic_studies import (
    contender_of,
    study_of,
)

_trained: dict[tuple[object, ...], list[tuple[float, float]]] = {}
"""Losses and norms of each set of files that trained, by the files and the number of ranks."""
_STEP = re.compile(r"step (\d+): loss ([\d.]+), gradient norm ([\d.]+)")


def export(folder: Path, config: TrialConfig, **study: Any) -> Path:
    for name, text in files(study_of(**study), contender_of(config)).items():
        (folder / name).write_text(text)
    return folder


def launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(folder / "launch.sh"), *arguments]
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=480, check=False, env=environment)


def losses_and_norms(output: str) -> list[tuple[float, float]]:
    """Losses of the two steps."""
    steps = [(float(loss), float(norm)) for _, loss, norm in _STEP.findall(output)]
    assert len(steps) == 2, output
    return steps


def train(folder: Path, ranks: int = 2) -> list[tuple[float, float]]:
    """Loss and gradient norm of two steps; files that are the same to the byte train once."""
    key = ranks, *sorted((path.name, path.read_text()) for path in folder.iterdir())
    if key not in _trained:
        program = folder / "train_snippet.py", "--steps", "2"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        printed = preloaded_forks.ranks(
            preloaded_forks.script, *program, logs=folder, count=ranks, environment=environment
        )
        _trained[key] = losses_and_norms(printed[0])
    return _trained[key]


def train_launched(folder: Path) -> list[tuple[float, float]]:
    """Losses of a script started as a user starts it."""
    done = launch(folder, "--steps", "2")
    assert done.returncode == 0, done.stderr[-4000:]
    return losses_and_norms(done.stdout)
