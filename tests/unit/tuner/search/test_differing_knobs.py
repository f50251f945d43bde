"""Knobs in which configurations differ: those of one backend alone count where they are no default."""

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.search.space.flat import differing_knobs

OFFLOADED = {"kind": "zero", "stage": 3, "offload_optimizer": {"device": "cpu"}}


def config(strategy: dict[str, object], micro_batch: int = 1) -> TrialConfig:
    return TrialConfig.model_validate({"strategy": strategy, "micro_batch": micro_batch})


def test_offload_of_another_backend_is_a_difference_and_its_defaults_are_none() -> None:
    knobs = differing_knobs((config(OFFLOADED), config({"kind": "fsdp2", "dp_shard": 8}, 8)))
    assert knobs == {
        "backend": ("zero", "fsdp2"), "micro_batch": (1, 8), "stage": (3, None), "offload_optimizer": ("cpu", None),
        "dp_shard": (None, 8),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (OFFLOADED, {"kind": "zero", "stage": 3}, {"offload_optimizer": ("cpu", "none")}),
        ({"kind": "fsdp1", "dp_shard": 8, "cpu_offload": True}, {"kind": "fsdp2", "dp_shard": 8},
         {"backend": ("fsdp1", "fsdp2"), "cpu_offload": (True, False)}),
        ({"kind": "ddp"}, {"kind": "ddp"}, {}),
        # In Python 1 == True.
        ({"kind": "fsdp2", "dp_shard": 8, "reshard_after_forward": True}, {"kind": "fsdp2", "dp_shard": 8}, {}),
    ],
)  # fmt: skip
def test_equal_knobs_are_no_difference(first, second, expected) -> None:
    assert differing_knobs((config(first), config(second))) == expected


def test_no_number_of_differences_hides_one() -> None:
    """A ZeRO-3 has a dozen knobs before the offload of its parameters."""
    changed = {
        "overlap_comm": False, "contiguous_gradients": False, "reduce_bucket_size": 1_000_000,
        "allgather_bucket_size": 1_000_000, "round_robin_gradients": True, "stage3_prefetch_bucket_size": 1_000_000,
        "stage3_param_persistence_threshold": 1, "stage3_max_live_parameters": 10, "stage3_max_reuse_distance": 10,
        "sub_group_size": 1_000_000, "offload_param": {"device": "cpu"},
    }  # fmt: skip
    knobs = differing_knobs((config(OFFLOADED | changed, 8), config({"kind": "ddp"})))
    assert knobs["offload_param"] == ("cpu", None) and knobs["offload_optimizer"] == ("cpu", None) and len(knobs) > 12
