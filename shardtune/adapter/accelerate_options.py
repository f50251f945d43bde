"""For scripts on Accelerate: `Accelerator(**accelerator_options(trial))`."""

from shardtune.workers.adapter.accelerate_options import accelerator_options

__all__ = ["accelerator_options"]
