"""A plain PyTorch loop as a trial. What Shardtune needs of it is marked with >>>."""

import contextlib

import tiny_language
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from shardtune import adapter

trial = adapter.trial()  # >>> the configuration to run
if trial.config.backend != "ddp":
    trial.refuse(f"this loop knows DDP only, not {trial.config.backend}")  # >>> the search learns it

dist.init_process_group("nccl" if trial.device.type == "cuda" else "gloo")
model = tiny_language.build_model(trial.workload.seed).to(trial.device)
trial.prepare(model)  # >>> before it is wrapped: checkpointing and compilation are applied here
ddp = DistributedDataParallel(model, broadcast_buffers=False, **trial.config.strategy.to_ddp())  # >>> the knobs
sync_every = trial.config.strategy.sync_policy == "every"  # >>>
optimizer = torch.optim.AdamW(model.parameters(), lr=trial.workload.optimizer.lr)
data = tiny_language.Text()
batches = iter(
    DataLoader(data, batch_size=trial.micro_batch, sampler=DistributedSampler(data, shuffle=False))  # >>> micro batch
)

while True:
    total = torch.zeros((), device=trial.device)
    for micro in range(trial.accumulation):  # >>> micro batches of a step
        last = micro == trial.accumulation - 1
        with contextlib.nullcontext() if last or sync_every else ddp.no_sync():
            inputs = {name: value.to(trial.device) for name, value in next(batches).items()}
            loss = ddp(**inputs).loss / trial.accumulation
            loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), trial.workload.max_grad_norm or float("inf"))
    optimizer.step()
    optimizer.zero_grad(set_to_none=not ddp.gradient_as_bucket_view)
    trial.report(total, norm)  # >>> after every optimizer step; ends the script when the trial has seen enough
