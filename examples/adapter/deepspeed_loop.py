"""Loop with DeepSpeed's engine, both as a trial and as a training with the best configuration. Lines for Shardtune are
marked with >>>.

After `shardtune tune` the same file trains with `best/config.json`: `torchrun --nproc-per-node 2 deepspeed_loop.py`.
"""

import os

import deepspeed
import tiny_language
import torch
import torch.distributed as dist
from deepspeed.ops.adam import DeepSpeedCPUAdam
from torch.utils.data import DataLoader, DistributedSampler

from shardtune import adapter
from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

trial = adapter.configuration(  # >>> the trial's configuration, the best known one, or this default
    backends=("zero",),  # >>> backends to try
    default=TrialConfig(strategy=ZeroConfig(stage=2)),
    workload=Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"]),
)

dist.init_process_group("nccl" if trial.device.type == "cuda" else "gloo")
model = tiny_language.build_model(trial.workload.seed).to(trial.device)
trial.prepare(model)  # >>> before the engine is made: checkpointing is applied here
zero = trial.config.strategy  # >>>
parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
adam = DeepSpeedCPUAdam if zero.offload_optimizer is not None else torch.optim.AdamW
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=adam(parameters, lr=trial.workload.optimizer.lr),
    model_parameters=parameters,
    config=zero.to_deepspeed(trial.workload, trial.micro_batch, trial.accumulation),  # >>> the whole JSON
    dist_init_required=False,
)
if zero.deepcompile:  # >>>
    engine.compile()
data = tiny_language.Text()
batches = iter(
    DataLoader(data, batch_size=trial.micro_batch, sampler=DistributedSampler(data, shuffle=False))  # >>> micro batch
)

for _ in range(int(os.environ.get("STEPS", "1_000_000"))):
    total = torch.zeros((), device=trial.device)
    for _micro in range(trial.accumulation):  # >>> micro batches of a step
        inputs = {name: value.to(trial.device) for name, value in next(batches).items()}
        loss = engine(**inputs).loss
        engine.backward(loss)
        engine.step()
        total += loss.detach() / trial.accumulation
    trial.report(total, engine.get_global_grad_norm())  # >>> after every optimizer step

dist.destroy_process_group()
