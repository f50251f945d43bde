"""What the words of the pages mean, with the names they have in PyTorch and DeepSpeed."""

KNOBS = {
    "micro_batch": "Samples one rank takes at once; gradients are accumulated up to the global batch.",
    "activation_checkpointing": "Which activations are recomputed in backward instead of kept: none, some (selective) or all (full).",
    "grad_sync": "When gradients are reduced while accumulating: after every micro batch, or after the last (`no_sync`).",
    "static_graph": "DDP: the graph never changes between steps (`static_graph=True`).",
    "gradient_as_bucket_view": "DDP: gradients live in the communication buckets, which saves a copy (`gradient_as_bucket_view=True`).",
    "bucket_cap_mb": "DDP: MiB of gradients per all-reduce (`bucket_cap_mb`).",
    "dp_shard": "Ranks over which parameters, gradients and optimizer state are sharded (second axis of the mesh).",
    "dp_replicate": "Groups that each hold a whole copy (first axis of the mesh); “replicated ×2” is two of them.",
    "reshard_after_forward": "FSDP2: whether gathered parameters are freed after forward; “kept after forward” is `reshard_after_forward=False`.",
    "sharding_strategy": "FSDP1: what is sharded, and whether gathered parameters are kept from forward to backward.",
    "stage": "DeepSpeed ZeRO: 1 shards optimizer state, 2 gradients too, 3 parameters too.",
    "forward_prefetch": "FSDP2: units gathered ahead in forward (`set_modules_to_forward_prefetch`).",
    "backward_prefetch": "FSDP2: units gathered ahead in backward (`set_modules_to_backward_prefetch`).",
    "reduce_bucket_size": "DeepSpeed: elements reduced per collective.",
    "allgather_bucket_size": "DeepSpeed: elements gathered per collective after the step.",
    "overlap_comm": "DeepSpeed: gradients are reduced while backward still computes.",
    "contiguous_gradients": "DeepSpeed: gradients are copied into one buffer as they appear.",
}


def knob_help(name: str) -> str:
    """One knob in a sentence; empty where its name says it."""
    return KNOBS.get(name, "")
