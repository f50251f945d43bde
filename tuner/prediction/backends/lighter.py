"""Strategies that keep most states off the device, whichever backend a configuration comes from."""

from shardtune.api_schemas.strategies import Fsdp2Config, Offload, ZeroConfig
from shardtune.tuner.prediction.backends.record import Lighter

OPTIMIZER_ON_HOST = Lighter(
    ZeroConfig(stage=3, offload_optimizer=Offload()), "ZeRO-3 with the optimizer on the host", 4
)


def over_all_ranks(world: int) -> Lighter:
    """Strategy that shards all states over all ranks."""
    return Lighter(Fsdp2Config(dp_shard=world), "FSDP2 over all ranks", 2)


def on_host(world: int) -> list[Lighter]:
    """Strategies that shard and offload, the optimizer or everything."""
    return [OPTIMIZER_ON_HOST, Lighter(Fsdp2Config(dp_shard=world, cpu_offload=True), "FSDP2 with CPU offload", 5)]
