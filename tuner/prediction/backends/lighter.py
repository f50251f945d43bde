"""What takes most states off the device, whichever backend one comes from."""

from shardtune.api_schemas.strategies import Fsdp2Config, Offload, ZeroConfig
from shardtune.tuner.prediction.backends.record import Lighter

OPTIMIZER_ON_HOST = Lighter(
    ZeroConfig(stage=3, offload_optimizer=Offload()), "ZeRO-3 with the optimizer on the host", 4
)


def over_all_ranks(world: int) -> Lighter:
    """Whole sharding."""
    return Lighter(Fsdp2Config(dp_shard=world), "FSDP2 over all ranks", 2)


def on_host(world: int) -> list[Lighter]:
    """Sharding with offload, of the optimizer or of everything."""
    return [OPTIMIZER_ON_HOST, Lighter(Fsdp2Config(dp_shard=world, cpu_offload=True), "FSDP2 with CPU offload", 5)]
