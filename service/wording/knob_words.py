"""Display name and explanation of each knob, with its name in PyTorch or DeepSpeed."""

from collections.abc import Mapping
from typing import NamedTuple


class KnobWords(NamedTuple):
    """Display name and explanation of one knob (tuned parameter)."""

    help: str
    """Explanation of the knob in one sentence."""
    name: str = ""
    """Display name of the knob; empty: derived from the knob's own name."""
    values: Mapping[str, str] = {}
    """Display texts of the knob's values that are not self-explanatory, shown after the knob's name."""


# Each text ends up in a `title` attribute on a page, so that it is plain text without markup but for backquotes.
_PINNED = "Offloaded state lies in page-locked host memory, which is copied faster"
KNOBS: dict[str, KnobWords] = {
    "backend": KnobWords("The library that distributes the training."),
    "micro_batch": KnobWords("Samples one rank takes at once; gradients are accumulated up to the global batch."),
    "context_parallel": KnobWords(
        "Adjacent ranks that share samples: each processes a part of every sequence, and attention exchanges positions for "
        "heads (Ulysses).",
        "context parallel",
    ),
    "tensor_parallel": KnobWords(
        "Adjacent ranks that split every block: each computes a part of its heads and hidden units, and between blocks a "
        "part of every sequence.",
        "tensor parallel",
    ),
    "pipeline_parallel": KnobWords(
        "Number of stages; each holds consecutive blocks on its own ranks, and the micro batches of a step pass through them.",
        "pipeline parallel",
    ),
    "expert_parallel": KnobWords(
        "Adjacent ranks that divide the experts of each layer: tokens are sent to the ranks of their experts and back.",
        "expert parallel",
    ),
    "pipeline_schedule": KnobWords(
        "Order of a stage's work. 1F1B runs each backward as soon as possible, which keeps few micro batches in memory; GPipe "
        "runs all forwards first. Interleaved and V schedules have several stages per rank; zero bubble delays weight gradients.",
        "pipeline schedule",
        {
            "1f1b": "1F1B",
            "gpipe": "GPipe",
            "interleaved_1f1b": "interleaved 1F1B",
            "interleaved_zero_bubble": "interleaved zero bubble",
            "zbv_zero_bubble": "zero bubble in a V",
            "dual_pipe_v": "DualPipeV",
        },
    ),
    "pipeline_virtual_stages": KnobWords(
        "Stages on each rank of a pipeline: more of them shorten the bubble and send more often.",
        "stages per rank",
    ),
    "activation_checkpointing": KnobWords(
        "Which activations are recomputed in backward instead of kept: none, some (selective) or all (full).",
        "checkpointing",
    ),
    "checkpoint_every": KnobWords(
        "Checkpoint every n-th of the repeated blocks; 1: all of them.", "checkpointing, every"
    ),
    "loss": KnobWords(
        "Whether the loss has the logits of a whole micro batch at once, or of a chunk of tokens, whose logits backward "
        "computes again.",
        "loss",
        {"full": "of all logits", "chunked": "in chunks"},
    ),
    "loss_chunk": KnobWords("Tokens in a chunk of the loss: fewer need less memory.", "loss, tokens in a chunk"),
    "compile": KnobWords("Each repeated block is compiled (`torch.compile`)."),
    "malloc": KnobWords(
        "Whether freed host memory stays with the process, or goes back by glibc's rules.",
        "freed host memory",
        {"keep": "kept", "default": "left to glibc"},
    ),
    "threads": KnobWords(
        "Threads of a rank (`OMP_NUM_THREADS`); 0: the node's cores divided by its ranks.",
        "threads",
        {"0": "cores divided by ranks"},
    ),
    "expandable_segments": KnobWords(
        "The CUDA allocator grows its segments (`PYTORCH_ALLOC_CONF=expandable_segments:True`)."
    ),
    "max_connections": KnobWords(
        "Hardware queues of a GPU (`CUDA_DEVICE_MAX_CONNECTIONS`); 0: the driver's default.",
        "device connections",
        {"0": "the driver's default"},
    ),
    "numa_binding": KnobWords(
        "Cores of a rank: any, those near its GPU (node), or an exclusive part of these (`torchrun --numa-binding`).",
        "NUMA binding",
    ),
    "deepcompile": KnobWords(
        "DeepSpeed: the whole model is compiled with its gathers and reductions in the graph (`compile.deepcompile`).",
        "DeepCompile",
    ),
    "grad_sync": KnobWords(
        "When gradients are reduced while accumulating: after every micro batch, or after the last (`no_sync`).",
        "gradient sync",
    ),
    "bucket_cap_mb": KnobWords("DDP: MiB of gradients per all-reduce (`bucket_cap_mb`).", "bucket, MiB"),
    "gradient_as_bucket_view": KnobWords(
        "DDP: gradients live in the communication buckets, which saves a copy (`gradient_as_bucket_view=True`)."
    ),
    "static_graph": KnobWords("DDP: the graph never changes between steps (`static_graph=True`)."),
    "stage": KnobWords("DeepSpeed ZeRO: 1 shards optimizer state, 2 gradients too, 3 parameters too.", "ZeRO stage"),
    "reduce_bucket_size": KnobWords("DeepSpeed: elements reduced per collective."),
    "allgather_bucket_size": KnobWords("DeepSpeed: elements gathered per collective after the step."),
    "overlap_comm": KnobWords("DeepSpeed: gradients are reduced while backward still computes."),
    "contiguous_gradients": KnobWords("DeepSpeed: gradients are copied into one buffer as they appear."),
    "round_robin_gradients": KnobWords("DeepSpeed: ranks take turns in the order in which gradients are copied."),
    "stage3_prefetch_bucket_size": KnobWords("ZeRO-3: elements of parameters gathered ahead of their use."),
    "stage3_param_persistence_threshold": KnobWords("ZeRO-3: parameters with fewer elements are never sharded."),
    "stage3_max_live_parameters": KnobWords("ZeRO-3: elements that may be gathered at once."),
    "stage3_max_reuse_distance": KnobWords(
        "ZeRO-3: parameters that are used again within this number of elements stay gathered."
    ),
    "sub_group_size": KnobWords("ZeRO-3: elements the optimizer updates at a time."),
    "zero_hpz_partition_size": KnobWords("ZeRO++: ranks of the group that backward gathers from; 1 turns it off."),
    "offload_optimizer": KnobWords("DeepSpeed: where optimizer state lives instead of the GPU."),
    "offload_optimizer_ratio": KnobWords("ZeRO-3: fraction of the optimizer state that is offloaded."),
    "offload_optimizer_pin_memory": KnobWords(f"DeepSpeed: {_PINNED}."),
    "offload_param": KnobWords("ZeRO-3: where parameters live instead of the GPU."),
    "offload_param_pin_memory": KnobWords(f"ZeRO-3: {_PINNED}."),
    "dp_shard": KnobWords(
        "Ranks over which parameters, gradients and optimizer state are sharded (second axis of the mesh).",
        "shard group",
    ),
    "dp_replicate": KnobWords(
        "Groups that each hold a whole copy (first axis of the mesh); “replicated ×2” is two of them.", "replicas"
    ),
    "reshard_after_forward": KnobWords(
        "FSDP2: whether gathered parameters are freed after forward; “kept after forward” is "
        "`reshard_after_forward=False`."
    ),
    "forward_prefetch": KnobWords("FSDP2: units gathered ahead in forward (`set_modules_to_forward_prefetch`)."),
    "backward_prefetch": KnobWords("FSDP2: units gathered ahead in backward (`set_modules_to_backward_prefetch`)."),
    "blocks_per_unit": KnobWords("FSDP2: repeated blocks that are sharded, gathered and reduced together."),
    "cpu_offload": KnobWords("FSDP: shards, gradients and optimizer state live in host memory."),
    "pin_memory": KnobWords(f"FSDP2: {_PINNED}."),
    "sharding_strategy": KnobWords(
        "FSDP1: what is sharded, and whether gathered parameters are kept from forward to backward."
    ),
    "fsdp1_forward_prefetch": KnobWords(
        "FSDP1: the next unit is gathered before the current forward (`forward_prefetch=True`)."
    ),
    "fsdp1_backward_prefetch": KnobWords(
        "FSDP1: when backward gathers the next unit: before the current one's gradients, after them, or not ahead."
    ),
    "limit_all_gathers": KnobWords("FSDP1: the host waits rather than gather more than two units ahead."),
    "use_orig_params": KnobWords("FSDP1: the optimizer sees the model's own parameters, not flat ones."),
}

# Words whose spelling in a knob's name is not how a person writes them; all others are used as they are.
_WORD_SPELLINGS = {
    "dp": "DP",
    "ddp": "DDP",
    "mb": "MiB",
    "cpu": "CPU",
    "hpz": "hpZ",
    "fsdp1": "FSDP1",
    "stage3": "stage 3",
    "param": "parameter",
}


def knob_name(name: str) -> str:
    """Return the display name of a knob (tuned parameter); stored configurations keep the knob's own name."""
    display_name = KNOBS[name].name if name in KNOBS else ""
    return display_name or " ".join(_WORD_SPELLINGS.get(word, word) for word in name.split("_"))


def knob_help(name: str) -> str:
    """Explain a knob (tuned parameter) in a sentence; empty for a knob that no longer exists."""
    # Stored configurations may hold knobs that this version has dropped.
    return KNOBS[name].help if name in KNOBS else ""
