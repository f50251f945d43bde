"""Plain PyTorch loop, both as a trial and as a training with the best configuration. Lines for Shardtune are marked
with >>>.

After `shardtune tune` the same file trains with `best/config.json`: `torchrun --nproc-per-node 2 plain_loop.py`.
"""

import contextlib
import os

import tiny_language
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from shardtune import adapter
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

trial = adapter.configuration(  # >>> the trial's configuration, the best known one, or this default
    backends=("ddp",),  # >>> backends to try
    default=TrialConfig(strategy=DdpConfig()),
    workload=Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"]),
)

dist.init_process_group("nccl" if trial.device.type == "cuda" else "gloo")
model = tiny_language.build_model(trial.workload.seed).to(trial.device)
trial.prepare(model)  # >>> before it is wrapped: checkpointing and compilation are applied here
ddp = DistributedDataParallel(model, broadcast_buffers=False, **trial.config.strategy.to_ddp())  # >>> the parameters
sync_every = trial.config.strategy.sync_policy == "every"  # >>>
optimizer = torch.optim.AdamW(model.parameters(), lr=trial.workload.optimizer.lr)
data = tiny_language.Text()
batches = iter(
    DataLoader(data, batch_size=trial.micro_batch, sampler=DistributedSampler(data, shuffle=False))  # >>> micro batch
)

for _ in range(int(os.environ.get("STEPS", "1_000_000"))):
    total = torch.zeros((), device=trial.device)
    for micro in range(trial.accumulation):  # >>> micro batches of a step
        last = micro == trial.accumulation - 1
        with contextlib.nullcontext() if last or sync_every else ddp.no_sync():
            inputs = {name: value.to(trial.device) for name, value in next(batches).items()}
            with trial.autocast():  # >>> only under the precision bf16-autocast
                loss = ddp(**inputs).loss / trial.accumulation
            loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), trial.workload.max_grad_norm or float("inf"))
    optimizer.step()
    optimizer.zero_grad(set_to_none=not ddp.gradient_as_bucket_view)
    trial.report(total, norm)  # >>> after every optimizer step; ends the script when a trial has seen enough

dist.destroy_process_group()
