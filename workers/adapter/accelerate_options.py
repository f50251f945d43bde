"""Arguments of `accelerate.Accelerator` for the configuration of a trial."""

from typing import Any

from accelerate import DistributedDataParallelKwargs
from accelerate.utils import GradientAccumulationPlugin

from shardtune.api_schemas.strategies import DdpConfig
from shardtune.api_schemas.training.search_space import Backend
from shardtune.workers.adapter.trial import Rejected, ScriptTrial

BACKENDS: tuple[Backend, ...] = ("ddp",)
"""Backends that `accelerator_options` can turn into Accelerate's options, for `adapter.configuration(backends=…)`."""


def accelerator_options(trial: ScriptTrial) -> dict[str, Any]:
    """Keyword arguments for `Accelerator(**…)`. They contain neither activation checkpointing nor compilation, which
    `trial.prepare` applies.

    Raises:
        Rejected: Accelerate cannot apply the configuration on this machine.
    """
    trial.require_ddp_on_cpu("Accelerate")
    strategy = trial.config.strategy
    if not isinstance(strategy, DdpConfig):
        raise Rejected(f"accelerator_options renders DDP only, not {trial.config.backend}; make its plugin yourself")
    precision = trial.workload.precision
    plugin = GradientAccumulationPlugin(
        # sync_with_dataloader off: Accelerate would otherwise step early at the end of an epoch.
        num_steps=trial.accumulation,
        sync_each_batch=strategy.sync_policy == "every",
        sync_with_dataloader=False,
    )
    return {
        "cpu": trial.device.type == "cpu",
        # A model that is loaded in bfloat16 trains in it throughout without mixed precision.
        "mixed_precision": "bf16" if precision.mixes_bfloat16 else "no",
        "gradient_accumulation_plugin": plugin,
        "kwargs_handlers": [DistributedDataParallelKwargs(broadcast_buffers=False, **strategy.to_ddp())],
    }
