"""A worker's place with a real fork server."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.launchers.fork_server import ForkServerLauncher

_NAMES = ("driver", "cuda", "nccl", "torch", "deepspeed", "transformers", "gpu_memory_gib")


@contextlib.contextmanager
def workplace(folder: Path, ranks: int) -> Iterator[Workplace]:
    launcher = ForkServerLauncher(os.environ, f"test-{uuid.uuid4().hex[:12]}", folder / "host.log", ready_timeout_s=120)
    launcher.prepare(lambda: False)
    fingerprint = Fingerprint(
        **dict.fromkeys(_NAMES), device="cpu", gpu="cpu", gpu_count=0, python="3", kernel="6", cpu="x", cpu_count=2,
        host_memory_gib=8,
    )  # fmt: skip
    try:
        yield Workplace(folder, launcher, fingerprint, ranks=ranks, peak_flops=None, min_free_gib=0)
    finally:
        launcher.close()
