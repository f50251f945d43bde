"""Numbers of a baseline that nothing could train with: the message names field, value and remedy in our words."""

import pytest
from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline.resolve import resolve_with_notes

WORKLOAD = Workload(sequence_length=64, global_batch=16)
CLUSTER = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)


def zero(**values: JsonValue) -> dict[str, JsonValue]:
    return {"zero_optimization": {"stage": 3, **values}, "train_micro_batch_size_per_gpu": 1}


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        (
            {"strategy": {"kind": "ddp", "bucket_cap_mb": -1}},
            "baseline.strategy.bucket_cap_mb (-1) must be at least 1; ",
        ),
        ({"kind": "ddp", "bucket_cap_mb": 0}, "baseline.strategy.bucket_cap_mb (0) must be at least 1; "),
        (zero(reduce_bucket_size=-5), "baseline.zero_optimization.reduce_bucket_size (-5) must be at least 1; "),
        (
            zero(offload_optimizer={"device": "cpu", "ratio": -1}),
            "baseline.zero_optimization.offload_optimizer.ratio (-1) must be above 0; ",
        ),
        ({"kind": "ddp", "bucket_cap_mb": "x"}, "baseline.strategy.bucket_cap_mb ('x') must be a whole number; "),
    ],
)
def test_a_number_out_of_range_is_named_with_value_and_remedy(baseline: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(ValueError, match="give such a value, or drop the key") as rejected:
        resolve_with_notes(baseline, WORKLOAD, CLUSTER)
    assert str(rejected.value).startswith(words)
