"""Cost of each backend's own machinery on the host: `python -m benchmarks.host_costs [--kind NAME ...] [--minutes M]`.

A model so narrow that only the number of operators counts is trained with two depths and two numbers of micro batches
under each strategy; T = fixed + micro batches × per_micro + layers × per_layer + micro batches × layers × per_both.
One JSON line per strategy, in milliseconds. The differences to a plain model are the source of `launches` in `tuner.prediction.backends`.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.own_trials.runs import execute, workplace
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.workers.agent.attempt import Workplace

_LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
_GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 64, "n_positions": 64, "n_embd": 16, "n_head": 2, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
DEPTHS, BATCHES = (2, 10), (1, 5)
_PLAN = MeasurePlan(parity_steps=2, max_warmup_steps=2, window_steps=2, min_windows=5, max_windows=5, min_measure_s=0)
_PLAIN = DdpConfig(grad_sync="last")
_SMALL: dict[str, Any] = {"overlap_comm": False, "reduce_bucket_size": 10_000_000}

KINDS: dict[str, tuple[TrialConfig, str, str]] = {
    "ddp-fp32": (TrialConfig(strategy=_PLAIN), "fp32", "llama"),
    "ddp-fp32-gpt2": (TrialConfig(strategy=_PLAIN), "fp32", "gpt2"),
    "ddp": (TrialConfig(strategy=_PLAIN), "bf16-mixed", "llama"),
    "ddp-full": (TrialConfig(strategy=_PLAIN, activation_checkpointing="full"), "bf16-mixed", "llama"),
    "ddp-selective": (TrialConfig(strategy=_PLAIN, activation_checkpointing="selective"), "fp32", "llama"),
    "fsdp2": (TrialConfig(strategy=Fsdp2Config(dp_shard=2)), "bf16-mixed", "llama"),
    "fsdp2-pairs": (TrialConfig(strategy=Fsdp2Config(dp_shard=2, blocks_per_unit=2)), "bf16-mixed", "llama"),
    "fsdp2-fp32": (TrialConfig(strategy=Fsdp2Config(dp_shard=2)), "fp32", "llama"),
    "fsdp2-kept": (TrialConfig(strategy=Fsdp2Config(dp_shard=2, reshard_after_forward=False)), "bf16-mixed", "llama"),
    "fsdp2-last": (TrialConfig(strategy=Fsdp2Config(dp_shard=2, grad_sync="last")), "bf16-mixed", "llama"),
    "fsdp2-offload": (TrialConfig(strategy=Fsdp2Config(dp_shard=2, cpu_offload=True)), "bf16-mixed", "llama"),
    "fsdp2-gpt2": (TrialConfig(strategy=Fsdp2Config(dp_shard=2)), "bf16-mixed", "gpt2"),
    "hsdp": (TrialConfig(strategy=Fsdp2Config(dp_replicate=2, dp_shard=1)), "bf16-mixed", "llama"),
    "fsdp1": (TrialConfig(strategy=Fsdp1Config(dp_shard=2)), "bf16-mixed", "llama"),
    "fsdp1-replicated": (
        TrialConfig(strategy=Fsdp1Config(dp_shard=1, dp_replicate=2, sharding_strategy="NO_SHARD")), "bf16-mixed", "llama",
    ),
    "zero1": (TrialConfig(strategy=ZeroConfig(stage=1, **_SMALL)), "bf16-mixed", "llama"),
    "zero2": (TrialConfig(strategy=ZeroConfig(stage=2, **_SMALL)), "bf16-mixed", "llama"),
    "zero2-offload": (
        TrialConfig(strategy=ZeroConfig(stage=2, offload_optimizer=Offload(), **_SMALL)), "bf16-mixed", "llama",
    ),
    "zero3": (TrialConfig(strategy=ZeroConfig(stage=3, stage3_param_persistence_threshold=0, **_SMALL)), "bf16-mixed", "llama"),
    "zero3-persistent": (TrialConfig(strategy=ZeroConfig(stage=3, **_SMALL)), "bf16-mixed", "llama"),
}  # fmt: skip


def seconds(place: Workplace, kind: str, layers: int, accumulation: int, number: int) -> float:
    """Milliseconds of one step."""
    config, precision, family = KINDS[kind]
    model = _LLAMA | {"num_hidden_layers": layers} if family == "llama" else _GPT2 | {"n_layer": layers}
    task = TrialTask(
        model=ModelSpec(name=family, config=model),
        workload=Workload(sequence_length=8, global_batch=2 * accumulation, precision=PRECISIONS[precision]),
        cluster=Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16),
        config=config,
        plan=_PLAN,
    )
    result = execute(place, task, number)
    assert isinstance(result, Measurement), result
    return min(result.window_step_times_s)


def costs(table: dict[tuple[int, int], float]) -> dict[str, float]:
    """Milliseconds, from seconds by depth and number of micro batches."""
    (l1, l2), (a1, a2) = DEPTHS, BATCHES
    deep, flat = ((table[l2, a] - table[l1, a]) / (l2 - l1) for a in (a2, a1))
    both = (deep - flat) / (a2 - a1)
    per_layer = flat - a1 * both
    per_micro = (table[l1, a2] - table[l1, a1]) / (a2 - a1) - l1 * both
    fixed = table[l1, a1] - a1 * per_micro - l1 * per_layer - a1 * l1 * both
    results = {"fixed": fixed, "per_micro": per_micro, "per_layer": per_layer, "per_both": both}
    return {name: round(1e3 * value, 3) for name, value in results.items()}


def main() -> int:
    """Measure each kind in turn; none begins after the given minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    end, number = time.monotonic() + 60 * options.minutes, 0
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder)) as place:
        for kind in options.kind or KINDS:
            if time.monotonic() > end:
                break
            table = {}
            for layers in DEPTHS:
                for accumulation in BATCHES:
                    number += 1
                    table[layers, accumulation] = seconds(place, kind, layers, accumulation, number)
            print(json.dumps({"kind": kind} | costs(table)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
