"""A training job (FSDP2) that saves once in so many steps: not at all, waiting for it, or beside its steps; prints its seconds of each.

Run by torchrun: saving_job.py FOLDER CHECKPOINT_BYTES WINDOW_S TIMES
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.fsdp import fully_shard

_WIDTH, _BATCH, _WARM = 512, 64, 5
_BYTES_PER_PARAMETER = 12
"""A float32 weight and Adam's two moments."""


class SavingJob:
    """A model whose checkpoint has about so many bytes."""

    def __init__(self, folder: Path, checkpoint_bytes: float) -> None:
        self._folder = folder
        torch.manual_seed(0)
        layers = max(1, round(checkpoint_bytes / _BYTES_PER_PARAMETER / _WIDTH**2))
        self._model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(layers)))
        fully_shard(self._model)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batch = torch.randn(_BATCH, _WIDTH)
        self._group = dist.new_group(backend="gloo")
        """A separate process group: what saves beside training must not mix its collectives with those of the steps."""

    def seconds_of(self, steps: int, how: str) -> float:
        """Train so many steps, the checkpoint begun before the first, until it is on the disk."""
        if dist.get_rank() == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        dist.barrier()
        begin = time.perf_counter()
        saving: Any = None
        if how == "waiting":
            save(self._state(), checkpoint_id=self._folder)
        elif how == "beside":
            saving = async_save(self._state(), checkpoint_id=self._folder, process_group=self._group)
        for _ in range(steps):
            self._model(self._batch).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        if saving is not None:
            saving.result()
        dist.barrier()
        return time.perf_counter() - begin

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}


def main(folder: Path, checkpoint_bytes: float, window_s: float, times: int) -> None:
    """Rank 0 prints a list of seconds without a checkpoint, waiting for it, and with it beside the steps."""
    dist.init_process_group("gloo")
    job = SavingJob(folder, checkpoint_bytes)
    job.seconds_of(_WARM, "not")
    steps = torch.tensor(max(_WARM, round(window_s / job.seconds_of(_WARM, "not") * _WARM)))
    dist.broadcast(steps, 0)
    figures = [[job.seconds_of(int(steps), how) for how in ("not", "waiting", "beside")] for _ in range(times)]
    if dist.get_rank() == 0:
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()
    # Threads of the saving that are left over may hold a process back at its end.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
