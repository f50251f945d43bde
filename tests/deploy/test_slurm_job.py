"""The job of a worker over containers of Slurm: each host has the folder that its container mounts."""

import os
import subprocess
from pathlib import Path

JOB = Path(__file__).parents[2] / "deploy/slurm/worker.sbatch"


def commands(folder: Path, *image: str) -> list[list[str]]:
    """Commands that the job starts, where `srun` and the worker only write theirs down."""
    for name in ("srun", "python"):
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> said\n')
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SHARDTUNE_PYTHON": "python"}
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"} | job
    subprocess.run(["bash", JOB, "http://service:8470", *image], cwd=folder, env=environment, check=True, timeout=20)
    return [line.split() for line in (folder / "said").read_text().splitlines()]


def test_every_host_has_the_folder_that_its_container_mounts(tmp_path: Path) -> None:
    made, worker = commands(tmp_path, "shardtune-worker")
    assert made[0] == "srun" and {"--nodes=4", "--ntasks-per-node=1"} <= set(made) and made[-5:-1] == [
        "mkdir", "-p", "-m", "700",
    ]  # fmt: skip
    folder = made[-1]
    assert f"--srun-option=--container-mounts={folder}:{folder}" in worker
    assert worker[-2:] == ["--node-dir", folder]


def test_without_an_image_the_worker_is_all_that_starts(tmp_path: Path) -> None:
    (worker,) = commands(tmp_path)
    assert "--node-dir" not in worker
