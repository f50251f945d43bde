"""Loop that shards with FSDP2, both as a trial and as a training with the best configuration. Lines for Shardtune are
marked with >>>.

After `shardtune tune` the same file trains with `best/config.json`: `torchrun --nproc-per-node 2 fsdp2_loop.py`.
"""

import os

import tiny_language
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from shardtune import adapter
from shardtune.adapter import fully_sharded
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

trial = adapter.configuration(  # >>> the trial's configuration, the best known one, or this default
    backends=fully_sharded.BACKENDS,  # >>> backends to try
    default=TrialConfig(strategy=Fsdp2Config(dp_shard=int(os.environ.get("WORLD_SIZE", "1")))),
    workload=Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"]),
)

dist.init_process_group("nccl" if trial.device.type == "cuda" else "gloo")
model = tiny_language.build_model(trial.workload.seed).to(trial.device)
trial.prepare(model)  # >>> before it is sharded: checkpointing and compilation are applied here
sharded = fully_sharded.shard(model, trial)  # >>> mesh, units, prefetch, offload, dtypes
optimizer = torch.optim.AdamW(model.parameters(), lr=trial.workload.optimizer.lr)
data = tiny_language.Text()
batches = iter(
    DataLoader(data, batch_size=trial.micro_batch, sampler=DistributedSampler(data, shuffle=False))  # >>> micro batch
)

for _ in range(int(os.environ.get("STEPS", "1_000_000"))):
    total = torch.zeros((), device=trial.device)
    for micro in range(trial.accumulation):  # >>> micro batches of a step
        inputs = {name: value.to(trial.device) for name, value in next(batches).items()}
        fully_sharded.before_backward(sharded, trial, micro == trial.accumulation - 1)  # >>> when gradients are reduced
        with trial.autocast():  # >>> only under the precision bf16-autocast
            loss = model(**inputs).loss / trial.accumulation
        loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), trial.workload.max_grad_norm or float("inf"))
    optimizer.step()
    optimizer.zero_grad()
    trial.report(
        total, norm.full_tensor()
    )  # >>> after every optimizer step; ends the script when a trial has seen enough

dist.destroy_process_group()
