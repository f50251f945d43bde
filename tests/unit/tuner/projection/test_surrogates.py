"""Configurations of a few GPUs that stand for configurations of more."""

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection.surrogates import growths, scaled_fields

HERE, THERE = catalogue.parse_cluster("2x8xh100"), catalogue.parse_cluster("64x8xh100")


def meshes(strategy: Strategy, here: Cluster = HERE, there: Cluster = THERE) -> list[tuple[int, int]]:
    """Copies and shards of what a configuration stands for on the target."""
    config = TrialConfig(strategy=strategy, micro_batch=2)
    grown = [growth.at(there.world_size) for growth in growths(config, here, there)]
    return [(row.strategy.dp_replicate, row.strategy.dp_shard) for row in grown if row is not None]


def test_a_group_over_all_ranks_stands_for_all_for_a_node_and_for_itself_beside_copies() -> None:
    assert meshes(Fsdp2Config(dp_shard=16)) == [(1, 512), (32, 16)]
    one_gpu = HERE.model_copy(update={"nodes": 1, "gpus_per_node": 2})
    assert meshes(Fsdp2Config(dp_shard=2), one_gpu) == [(1, 512), (64, 8), (256, 2)]


def test_a_group_beside_copies_stays_as_large_as_it_is() -> None:
    assert meshes(Fsdp2Config(dp_shard=8, dp_replicate=2)) == [(64, 8)]
    assert meshes(Fsdp2Config(dp_shard=1, dp_replicate=16)) == [(512, 1)]


def test_tensor_parallel_ranks_stay_and_the_mesh_multiplies_up_to_the_target() -> None:
    assert meshes(Fsdp2Config(dp_shard=4, tensor_parallel=4)) == [(1, 128), (32, 4)]


def test_fsdp1_takes_the_hybrid_name_where_there_are_copies() -> None:
    config = TrialConfig(strategy=Fsdp1Config(dp_shard=16, sharding_strategy="SHARD_GRAD_OP"))
    whole, hybrid = (growth.at(512) for growth in growths(config, HERE, THERE))
    assert whole is not None and whole.strategy.sharding_strategy == "SHARD_GRAD_OP"
    assert hybrid is not None and hybrid.strategy.sharding_strategy == "_HYBRID_SHARD_ZERO2"


@pytest.mark.parametrize("strategy", [DdpConfig(), ZeroConfig(stage=1), ZeroConfig(stage=3)])
def test_backends_without_groups_stand_for_themselves(strategy: Strategy) -> None:
    config = TrialConfig(strategy=strategy, micro_batch=4)
    (growth,) = growths(config, HERE, THERE)
    assert growth.at(512) == config and scaled_fields(config, config) == ()


def test_everything_but_the_groups_stays_the_work_of_a_rank() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=16), micro_batch=2, activation_checkpointing="full")
    for growth in growths(config, HERE, THERE):
        grown = growth.at(512)
        assert grown is not None
        assert grown.model_copy(update={"strategy": config.strategy}) == config
        assert grown.accumulation(1024, 512) == config.accumulation(32, 16)


def test_what_was_scaled_is_named_with_both_values() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=16))
    grown = growths(config, HERE, THERE)[1].at(512)
    assert grown is not None
    (copies,) = scaled_fields(config, grown)
    assert (copies.field, copies.measured, copies.target) == ("dp_replicate", 1, 32)


def test_a_size_that_the_groups_do_not_divide_has_no_such_configuration() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8, dp_replicate=2))
    (growth,) = growths(config, HERE, THERE)
    assert growth.at(20) is None and growth.at(24) is not None
