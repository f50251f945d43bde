"""Loop with Accelerate, both as a trial and as a training with the best configuration. Lines for Shardtune are marked
with >>>."""

import os
from itertools import islice

import tiny_language
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from shardtune import adapter
from shardtune.adapter.accelerate_options import BACKENDS, accelerator_options
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

trial = adapter.configuration(  # >>> the trial's configuration, the best known one, or this default
    backends=BACKENDS,  # >>> backends to try
    default=TrialConfig(strategy=DdpConfig()),
    workload=Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"]),
)
accelerator = Accelerator(
    **accelerator_options(trial)
)  # >>> its parameters; rejects those that Accelerate cannot apply
model = trial.prepare(tiny_language.build_model(trial.workload.seed))  # >>> before accelerator.prepare
optimizer = torch.optim.AdamW(model.parameters(), lr=trial.workload.optimizer.lr)
loader = DataLoader(tiny_language.Text(), batch_size=trial.micro_batch)  # >>> micro batch
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

losses = []
for batch in islice(loader, int(os.environ.get("STEPS", "1_000_000")) * trial.accumulation):
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        norm = None
        if accelerator.sync_gradients and trial.workload.max_grad_norm is not None:
            norm = accelerator.clip_grad_norm_(model.parameters(), trial.workload.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.detach())
    if accelerator.sync_gradients:
        trial.report(torch.stack(losses).mean(), norm)  # >>> after every optimizer step
        losses.clear()
