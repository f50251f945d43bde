"""Tiny tasks, about a second each."""

from typing import Any

from shardtune.api_schemas.trials.leases import TrialTask

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 512,
    "n_positions": 128,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
_BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
BACKENDS: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
    "zero-1": {"kind": "zero", "stage": 1, **_BUCKETS},
    "zero-2": {"kind": "zero", "stage": 2, **_BUCKETS},
    "zero-3": {"kind": "zero", "stage": 3, **_BUCKETS},
}
"""Each backend over two ranks, with ZeRO's buckets as small as the models."""


def tiny_task(strategy: dict[str, Any], **changes: Any) -> TrialTask:
    """A trial of a tiny model that takes about a second; `changes` name fields of workload, config, plan or task."""
    workload: dict[str, Any] = {
        "sequence_length": 32,
        "global_batch": 8,
        "precision": "fp32",
        "optimizer": {"lr": 1.25e-3},
        "seed": 1,
    }
    workload |= {"max_grad_norm": 1.0, "adapter": None, "data": None, "attention": "sdpa", "float8": None}
    config = {"strategy": strategy, "micro_batch": 1, "activation_checkpointing": "none", "checkpoint_every": 1}
    config |= {
        "compile": False,
        "selective_keeps": "products",
        "activation_memory_budget": 1.0,
        "context_parallel": 1,
        "loss": "full",
        "loss_chunk": 1024,
        "loss_compile": False,
        "gc_every": 0,
        "activation_offload": False,
        "mlp_slices": 1,
    }
    plan: dict[str, Any] = {
        "parity_steps": 16,
        "max_warmup_steps": 1,
        "window_steps": 1,
        "min_windows": 2,
        "max_windows": 2,
    }
    plan |= {"min_measure_s": 0, "prune_above_s": None}
    task: dict[str, Any] = {"model": LLAMA, "memory_limit_gib": None}
    world = changes.pop("ranks", 2)
    for key, value in changes.items():
        next((part for part in (workload, config, plan) if key in part), task)[key] = value
    cluster = {"device": "cpu", "gpus_per_node": world, "memory_gib": 4, "host_memory_gib": 16}
    return TrialTask.model_validate({**task, "workload": workload, "cluster": cluster, "config": config, "plan": plan})
