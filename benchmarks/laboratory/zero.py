"""Step of DeepSpeed's ZeRO over paced blocks."""

import logging
from typing import Any

import deepspeed
import deepspeed.comm.torch as deepspeed_torch
import torch
from torch import nn

from benchmarks.laboratory.programs import WEIGHTS

# It would compile C++ for minutes, for ranks of one host; there is one rank a host.
deepspeed_torch.build_shm_op = lambda *_: None
logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


def engine(model: nn.Module, stage: int) -> Any:
    """DeepSpeed's engine with buckets of one block."""
    deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False, verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "reduce_bucket_size": WEIGHTS,
            "allgather_bucket_size": WEIGHTS,
            "stage3_prefetch_bucket_size": WEIGHTS,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_max_live_parameters": 3 * WEIGHTS,
        },
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer, dist_init_required=False)
    return made
