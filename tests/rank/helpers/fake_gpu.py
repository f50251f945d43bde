"""A device with the shape of a GPU and tensors on the processor: what is queued ends later, memory is counted, numbers are drawn."""

import contextlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.strategies import DdpConfig, NumaBinding
from shardtune.api_schemas.trials.measurements import Memory
from shardtune.workers.launch import RESUMES
from shardtune.workers.rank import main
from shardtune.workers.rank.device import device_peak_gib
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.strategies.ddp import DdpTrainer
from shardtune.workers.trial_dir import TrialDir
from tests.support.processes import preloaded_forks

STEP_S = 0.05
"""Seconds of work that the device has queued behind each optimizer step, which itself returns at once."""


class PlayedGpu:
    """Keeps a log of what it is asked, one word a line, which outlives its process."""

    tensors = torch.device("cpu")

    def __init__(self, log: Path) -> None:
        self._log = log
        self._done_s = 0.0
        self._drawn = 0
        self._counts = False

    def _note(self, *words: object) -> None:
        with self._log.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def queue(self, seconds: float) -> None:
        """Work that begins when what was queued before is done, and draws one number."""
        self._done_s = max(self._done_s, time.perf_counter()) + seconds
        self._drawn += 1

    def use(self) -> None:
        self._note("use")

    def synchronize(self) -> None:
        time.sleep(max(0.0, self._done_s - time.perf_counter()))

    def is_busy(self) -> bool:
        return time.perf_counter() < self._done_s

    def configure_allocator(self, settings: str) -> None:
        self._note("allocator", settings)

    def bind(self, mode: NumaBinding) -> None:
        self._note("bind", mode)

    def release_cache(self) -> None:
        self._note("release")

    def reset_peaks(self) -> bool:
        self._note("count")
        self._counts = True
        return True

    def memory_peaks(self) -> Memory | None:
        return Memory(
            peak_allocated_gib=1.5,
            peak_reserved_gib=3.0,
            device_used_gib=device_peak_gib(5 * GIB, 2 * GIB, 3 * GIB),
            allocator_retries=1 if self._counts else 0,
            allocator_ooms=0,
        )

    def free_bytes(self) -> int | None:
        return 100 << 20

    def random_state(self) -> torch.Tensor | None:
        self._note("saved", self._drawn)
        return torch.tensor([self._drawn])

    def set_random_state(self, state: torch.Tensor) -> None:
        self._note("loaded", int(state))

    def materializing(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


class _QueuesSteps(DdpTrainer):
    """Device whose steps end for the host before they end for the device."""

    def __init__(self, model: nn.Module, setting: TrainingSetup, config: DdpConfig) -> None:
        super().__init__(model, setting, config)
        assert isinstance(setting.context.accelerator, PlayedGpu)
        self._gpu = setting.context.accelerator

    def optimizer_step(self) -> torch.Tensor | float | None:
        norm = super().optimizer_step()
        self._gpu.queue(STEP_S)
        return norm


def run_rank(folder: Path) -> list[str]:
    """Run the only rank of a trial directory, or resume in one that has run; return the calls of its device."""
    log = folder / "device.log"
    resumes = (folder / "rank_0.json").exists()
    if resumes:
        TrialDir(folder).begin_resume_phase()
        log.unlink()
    preloaded_forks.ranks(_rank, folder, log, logs=folder, count=1, environment={RESUMES: "1"} if resumes else None)
    return log.read_text().splitlines()


def _rank(folder: Path, log: Path) -> None:
    main.run(
        folder, lambda model, setting: _QueuesSteps(model, setting, DdpConfig()), lambda kind, index: PlayedGpu(log)
    )
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    sys.stderr.flush()
    os._exit(0)
