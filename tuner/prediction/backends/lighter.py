"""Strategies that keep most model states off the device, offered for a configuration of any backend that does not
fit."""

from shardtune.api_schemas.strategies import Fsdp2Config, Offload, ZeroConfig
from shardtune.tuner.prediction.backends.record import Lighter

OPTIMIZER_ON_HOST = Lighter(
    ZeroConfig(stage=3, offload_optimizer=Offload()), "ZeRO-3 with the optimizer on the host", 4
)


def over_all_ranks(world: int) -> Lighter:
    """Strategy that shards all model states over all ranks, proposed in place of a strategy that needs more memory."""
    return Lighter(Fsdp2Config(dp_shard=world), "FSDP2 over all ranks", 2)


def on_host(world: int) -> list[Lighter]:
    """Strategies that shard the model states and offload the optimizer state (or all states) to host memory, proposed
    in place of one that needs more memory."""
    return [OPTIMIZER_ON_HOST, Lighter(Fsdp2Config(dp_shard=world, cpu_offload=True), "FSDP2 with CPU offload", 5)]
