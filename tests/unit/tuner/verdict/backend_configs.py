"""One configuration of each backend, and another of ZeRO."""

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig

DDP, FSDP2 = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2))
ZERO, ZERO_3 = TrialConfig(strategy=ZeroConfig(stage=2)), TrialConfig(strategy=ZeroConfig(stage=3))
