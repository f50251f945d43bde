"""Trials of the benchmark: a few configurations, each with equal lengths and with every layout of one histogram."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_lengths import LAYOUTS
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

EQUAL = "equal"
"""Name of the trials whose samples all have one length; the speed is calibrated by them alone."""
MODEL = ModelSpec(
    name="llama-zipf",
    config={
        "model_type": "llama", "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
    },
)  # fmt: skip
CLUSTER = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16)
LONGEST = 256
ZIPF = tuple((8 * rank, round(1000 / rank)) for rank in range(1, LONGEST // 8 + 1))
"""Zipf-like histogram: the n-th length, of 8 n tokens, has 1/n of the shortest one's samples."""
_MICRO_BATCHES = {"ddp": (2, 4, 8), "fsdp2": (2, 4, 8), "zero": (4,)}
_STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
    "zero": {"kind": "zero", "stage": 2},
}


@dataclass(frozen=True)
class Case:
    """One trial: a configuration with one layout of the samples."""

    layout: str
    """Layout, or `EQUAL`."""
    workload: Workload
    config: TrialConfig


def cases() -> Iterator[Case]:
    """Every configuration with every layout."""
    for layout in (EQUAL, *LAYOUTS):
        workload = _workload(layout)
        for backend, sizes in _MICRO_BATCHES.items():
            for micro_batch in sizes:
                strategy = _STRATEGIES[backend]
                config = TrialConfig.model_validate({"strategy": strategy, "micro_batch": micro_batch})
                yield Case(layout, workload, config)


def _workload(layout: str) -> Workload:
    data = None if layout == EQUAL else {"lengths": ZIPF, "layout": layout}
    sizes = {"sequence_length": LONGEST, "global_batch": 32, "precision": PRECISIONS["fp32"], "data": data}
    return Workload.model_validate(sizes)
