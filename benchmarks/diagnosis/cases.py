"""Planted and healthy cases: the same kinds of mistakes in models, batches and sizes drawn by a seed.

Thresholds of the rules were set on the seeds of `SET_ON`; what is scored comes from others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.diagnosis import FindingKind

SET_ON = (*range(3), *range(200, 205))
"""Seeds that thresholds were set on."""
RANKS = 2


@dataclass(frozen=True)
class Case:
    """One run of 2 CPU ranks."""

    name: str
    planted: FindingKind | None
    """Planted mistake; None: healthy."""
    model: ModelSpec
    workload: Workload
    config: TrialConfig
    link_mbit: int | None = None
    """Bandwidth of the loopback interface in a separate network namespace; None: unlimited."""
    slow_rank_s: float = 0.0
    """Rank 1 sleeps so long in each micro batch."""
    slow_data_s: float = 0.0
    """The data loader takes so long for a batch."""

    @property
    def cluster(self) -> Cluster:
        """CPU ranks of this machine; the memory is only declared."""
        return Cluster(device="cpu", gpus_per_node=RANKS, memory_gib=4, host_memory_gib=16)

    @property
    def measured_mbit(self) -> int | None:
        """Link on which the rates were measured that its findings are held against: as it should be where slowness is planted."""
        return None if self.planted == "network_limits" else self.link_mbit

    @property
    def is_own_job(self) -> bool:
        """A training loop that is none of the product's: its trials make their batches beforehand and have no slow rank."""
        return self.slow_rank_s > 0 or self.slow_data_s > 0


def _model(random: Random, hidden: int | None = None, layers: int | None = None) -> ModelSpec:
    hidden, layers = hidden or random.choice((128, 192, 256)), layers or random.choice((4, 5, 6))
    config: dict[str, Any] = {
        "model_type": "llama", "vocab_size": random.choice((1024, 2048)), "hidden_size": hidden,
        "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    return ModelSpec(name=f"llama-{layers}x{hidden}", config=config)


def _case(
    name: str, planted: FindingKind | None, model: ModelSpec, shape: tuple[int, int, int], strategy: dict[str, Any],
    config: dict[str, Any] | None = None, **more: Any,
) -> Case:  # fmt: skip
    """`shape`: sequence length, global batch, micro batch."""
    sequence, batch, micro = shape
    workload = Workload(sequence_length=sequence, global_batch=batch, precision=PRECISIONS["fp32"])
    trial_config = TrialConfig.model_validate({"strategy": strategy, "micro_batch": micro, **(config or {})})
    return Case(name, planted, model, workload, trial_config, **more)


_DDP: dict[str, Any] = {"kind": "ddp"}
_FSDP2: dict[str, Any] = {"kind": "fsdp2", "dp_shard": RANKS}


def planted(seed: int) -> Iterator[Case]:
    """One case of each kind."""
    random = Random(f"planted {seed}")
    stage = random.choice((1, 2))
    small = {"kind": "zero", "stage": stage, "reduce_bucket_size": random.choice((4_000, 8_000))}
    large = random.choice((64, 128))
    link = random.choice((600, 800, 1000))
    yield _case("buckets_too_small", "buckets_too_small", _model(random), (large, 8, 4), small)
    example = {"kind": "ddp", "bucket_cap_mb": 1024}
    model = _model(random, hidden=256, layers=6)
    yield _case("buckets_too_large", "buckets_too_large", model, (64, 16, 8), example, link_mbit=link)
    model = _model(random, hidden=64, layers=random.choice((12, 16)))
    yield _case("units_too_small", "units_too_small", model, (32, 4, 2), _FSDP2)
    zero3 = {"kind": "zero", "stage": 3, "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0}
    zero3 |= {"stage3_max_reuse_distance": 0}
    yield _case("gathered_one_by_one", "units_too_small", _model(random), (64, 8, 4), zero3)
    yield _case("all_gathers_dominate", "all_gathers_dominate", _model(random), (64, 16, 2), _FSDP2, link_mbit=link)
    shape = (random.choice((32, 64)), 32, 1)
    yield _case("host_bound", "host_bound", _model(random, hidden=128), shape, _DDP)
    every = random.choice((_DDP, _FSDP2)) | {"grad_sync": "every"}
    yield _case("reduces_every_micro_batch", "reduces_every_micro_batch", _model(random), (64, 32, 2), every)
    mode = {"activation_checkpointing": "full"}
    yield _case("checkpointed", "checkpointed_without_need", _model(random), (large, 16, 8), _DDP, mode)
    yield _case("slow_link", "network_limits", _model(random), (64, 8, 4), _DDP, link_mbit=random.choice((150, 250)))
    sharded = {"kind": "zero", "stage": 2}
    model, slow = _model(random), random.choice((150, 250))
    yield _case("slow_link_zero2", "network_limits", model, (64, 8, 4), sharded, link_mbit=slow)
    wait = random.choice((0.02, 0.04))
    yield _case("slow_rank", "late_rank", _model(random), (64, 8, 4), _DDP, slow_rank_s=wait)
    yield _case("slow_data", "data_waits", _model(random), (64, 8, 4), _DDP, slow_data_s=wait)


def healthy(seed: int) -> Iterator[Case]:
    """Healthy cases, which nobody would change: few collectives, large micro batches, nothing gathered that need not
    be."""
    random = Random(f"healthy {seed}")
    for number, strategy in enumerate(
        (_DDP, _DDP | {"gradient_as_bucket_view": True}, {"kind": "zero", "stage": 1}, _FSDP2 | _REPLICATED)
    ):
        shape = (random.choice((128, 256)), 16, 8)
        yield _case(f"healthy_{number}", None, _model(random), shape, strategy)


_REPLICATED: dict[str, Any] = {"dp_shard": 1, "dp_replicate": RANKS, "reshard_after_forward": False}
