"""Memory of FSDP1 while it reduces a unit, beside what two and four CPU ranks held and what rehearsals of GPUs count."""

from collections.abc import Mapping

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.predictions import MemoryPrediction, PredictionRequest
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.search import fastest

MODEL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8,
    "num_key_value_heads": 8, "num_hidden_layers": 8, "vocab_size": 1024, "max_position_embeddings": 128,
}  # fmt: skip
CPU = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16)
NOTHING: Mapping[str, object] = {}
BLOCK_MIB = 12.25
"""Float32 parameters of one block."""


def memory(
    cluster: Cluster, ranks: int, precision: str, kind: str = "fsdp1", changes: Mapping[str, object] = NOTHING
) -> MemoryPrediction:
    request = {
        "model": {"name": "llama", "config": MODEL},
        "cluster": cluster.model_copy(update={"gpus_per_node": ranks}),
        "configs": [{"strategy": {"kind": kind, "dp_shard": ranks}, "activation_checkpointing": "full"}],
        "global_batch": ranks,
        "sequence_length": 32,
        "precision": precision,
        "top": 0,
    }
    return fastest.answer_request(PredictionRequest.model_validate(request | dict(changes))).predictions[0].memory


@pytest.mark.parametrize(
    ("ranks", "precision", "measured_mib"),
    [(2, "bf16-mixed", 235.77), (4, "bf16-mixed", 137.80), (2, "fp32", 244.97)],
)
def test_the_peak_is_what_cpu_ranks_held(ranks: int, precision: str, measured_mib: float) -> None:
    assert memory(CPU, ranks, precision).allocated_gib * 1024 == pytest.approx(measured_mib, rel=0.002)


def test_a_gpu_holds_no_clone_of_what_is_reduced() -> None:
    gpus = memory(catalogue.parse_cluster("2xh100"), 2, "bf16-mixed")
    cpu = memory(CPU, 2, "bf16-mixed")
    assert (cpu.allocated_gib - gpus.allocated_gib) * 1024 == pytest.approx(BLOCK_MIB, rel=0.01)


def test_what_fsdp1_frees_on_a_gpu_stays_reserved_for_the_stream_that_reduced() -> None:
    layout = {"model": "llama-2-70b", "cluster": catalogue.parse_cluster("64x8xh100"), "sequence_length": 4096}
    first, second = (memory(CPU, 512, "bf16-mixed", kind, changes=layout) for kind in ("fsdp1", "fsdp2"))
    # A rehearsal of 512 ranks by torch's own code counts 14.35 and 16.82 GiB.
    assert first.allocated_gib == pytest.approx(14.35, rel=0.02)
    assert second.allocated_gib == pytest.approx(16.82, rel=0.02)
    assert first.reserved_gib > second.allocated_gib
