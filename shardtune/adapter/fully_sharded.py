"""Functions for scripts that shard with FSDP2: `fully_sharded.shard(model, trial)`, and `before_backward` in the
loop."""

from shardtune.workers.adapter.fully_sharded import BACKENDS, before_backward, shard

__all__ = ["BACKENDS", "before_backward", "shard"]
