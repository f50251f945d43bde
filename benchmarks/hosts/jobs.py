"""Measured job over the hosts: a small model and a space in which the network decides."""

from typing import Any

_MODEL = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
_KNOBS: dict[str, Any] = {
    "micro_batch": 2,
    "activation_checkpointing": "none",
    "malloc": "default",
    "threads": 0,
    "bucket_cap_mb": 25,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "blocks_per_unit": 1,
}


def meshes(hosts: int, ranks: int) -> dict[str, Any]:
    """Placements of data parallelism's shards and replicas: the backend, the mesh, and whether parameters are gathered
    again."""
    space = {"backends": ["ddp", "fsdp2"], "knobs": _KNOBS | {"reshard_after_forward": [True, False]}}
    budget = {"max_trials": 7}
    return {"model": _MODEL, "workload": _workload(2 * hosts * ranks), "space": space, "budget": budget}


def layouts(hosts: int, ranks: int) -> dict[str, Any]:
    """Placements of tensor parallelism and stages, beside data parallelism: heads can be split over all ranks, and each
    stage has
    micro batches to be busy with. The study has fewer trials than there are candidates on two hosts with two ranks (ten)."""
    split = {
        "tensor_parallel": sorted({1, ranks, hosts * ranks}),
        "pipeline_parallel": sorted({1, hosts}),
        "pipeline_schedule": "1f1b",
        "reshard_after_forward": False,
        "grad_sync": "last",
    }
    heads = {"num_attention_heads": hosts * ranks, "num_key_value_heads": hosts * ranks}
    space = {"backends": ["ddp", "fsdp2"], "knobs": _KNOBS | split}
    budget = {"max_trials": 8}
    return {"model": _MODEL | heads, "workload": _workload(4 * hosts * ranks), "space": space, "budget": budget}


JOBS = {"meshes": meshes, "layouts": layouts}


def _workload(global_batch: int) -> dict[str, Any]:
    return {"sequence_length": 64, "global_batch": global_batch, "precision": "fp32"}
