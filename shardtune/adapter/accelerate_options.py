"""Options for scripts on Accelerate: `Accelerator(**accelerator_options(trial))`."""

from shardtune.workers.adapter.accelerate_options import BACKENDS, accelerator_options

__all__ = ["BACKENDS", "accelerator_options"]
