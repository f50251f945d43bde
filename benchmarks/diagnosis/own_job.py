"""A training job that is none of the product's: DDP and a DataLoader, one rank or the data made slow, three steps recorded.

Run by torchrun: own_job.py FOLDER SLOW_RANK_S SLOW_DATA_S
"""

import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

_WIDTH, _LAYERS, _BATCH, _WARM, _STEPS = 384, 6, 256, 4, 3


class _Batches(Dataset[torch.Tensor]):
    def __init__(self, slow_s: float) -> None:
        self._slow_s, self._batch = slow_s, torch.randn(_BATCH, _WIDTH)

    def __len__(self) -> int:
        return _WARM + _STEPS + 2

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._slow_s)
        return self._batch


def _leave(path: Path, recorder: profile) -> None:
    recorder.export_chrome_trace(str(path))


def main(folder: Path, slow_rank_s: float, slow_data_s: float) -> None:
    """Train, and leave this rank's trace in the folder."""
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))))
    optimizer = torch.optim.AdamW(model.parameters())
    steps = schedule(wait=0, warmup=_WARM, active=_STEPS)
    leave = partial(_leave, folder / f"rank_{rank}.json.gz")
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, schedule=steps, record_shapes=True, on_trace_ready=leave) as recorder:
        for batch in DataLoader(_Batches(slow_data_s), batch_size=None):
            if rank == 1:
                time.sleep(slow_rank_s)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
            if recorder.step_num == _WARM + _STEPS:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
