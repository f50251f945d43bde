"""Export for torchtitan 0.3 as `torchtitan_config.py`: a function that returns a `Trainer.Config`.

torchtitan 0.2.2 was the last release that read TOML. Facts about 0.3 are from its source code.
"""

import math
from typing import Any

from shardtune.api_schemas.strategies import Fsdp2Config, Strategy, TrialConfig
from shardtune.api_schemas.strategies.losses import DEFAULT_CHUNK
from shardtune.api_schemas.training.model_presets import preset_config, preset_sources
from shardtune.tuner.export import adapters, context, environment, losses, optimizers, sample_lengths
from shardtune.tuner.export.backends import common, selective
from shardtune.tuner.export.backends.record import ConsumerParts
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.precision import float8
from shardtune.tuner.export.quoting import in_docstring, literal
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill, indent
from shardtune.tuner.export.trial_rendering import Rendered, comment, differences, keywords, note_texts, run_by

RELEASE = "torchtitan 0.3.0"
FILE = "torchtitan_config.py"
_GC_EVERY = 50
"""Number of steps after which torchtitan collects garbage by default (`training.gc_freq`); it switches Python's
automatic collection off."""
_UNLIMITED = 1e9
"""Limit on the gradient norm that no gradient reaches; it stands for no clipping, as torchtitan always clips."""
_FLOAT8_IMPORT = "from torchtitan.components.quantization import Float8LinearConverter"
SET_ME = "SET-ME"
"""Placeholder for a name that the user has to choose."""

FOLDERS = {
    "llama": "llama3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v3": "deepseek_v3",
    "gpt_oss": "gpt_oss",
}
"""Names of the folders in torchtitan's `models`, by `model_type` of transformers."""
FLAVORS = {
    "llama-3.2-1b": "1B",
    "llama-3.2-3b": "3B",
    "llama-3.1-8b": "8B",
    "llama-3.1-70b": "70B",
    "llama-3.1-405b": "405B",
    "qwen3-0.6b": "0.6B",
    "qwen3-4b": "4B",
    "qwen3-8b": "8B",
    "qwen3-32b": "32B",
    "qwen3-30b-a3b": "30B-A3B",
    "qwen3-235b-a22b": "235B-A22B",
    "gpt-oss-20b": "20b",
    "gpt-oss-120b": "120b",
    "deepseek-v3": "671B",
}
"""Names of model sizes in torchtitan's tables (torchtitan 0.3, `models/*/__init__.py`), by Shardtune's preset for the
same model."""


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported file for torchtitan, `torchtitan_config.py`.

    Raises:
        ValueError: torchtitan lacks the backend.
    """
    config = source.config
    render_parts = backends[config.backend].torchtitan
    if render_parts is None:
        raise ValueError(
            f"backend ({config.backend!r}) is not in {RELEASE}; export a trial of fsdp2 or ddp with --which NUMBER"
        )
    parts = render_parts(source, config.strategy)
    mesh = context.torchtitan_mesh(source, parts.values)
    strategy, lost, notes = _consumer_strategy(source, parts)
    # A block is recomputed whole or, in the selective mode, every one in part.
    every = config.checkpoint_every if config.activation_checkpointing == "full" else 1
    changes: dict[str, Any] = {
        "strategy": strategy,
        "checkpoint_every": every,
        "gc_every": config.gc_every or _GC_EVERY,
        "compile": float8.torchtitan_compiles(source),
    }
    if config.activation_checkpointing == "selective" and config.selective_keeps == "products":
        # Its policy cannot keep all products of linear layers.
        changes["selective_keeps"] = "second_products"
    if not _chunks_loss(source):
        changes |= {"loss": "full", "loss_chunk": DEFAULT_CHUNK, "loss_compile": False}
    rendered_config = run_by(config, "torchtitan", **changes)
    compared = rendered_config if lost else rendered_config.model_copy(update={"strategy": config.strategy})
    besides = (*_notes(source), *context.torchtitan_notes(source), *notes, *environment.notes(source))
    lossy = (*note_texts(differences(config, compared, "torchtitan")), *besides)
    return Rendered({FILE: _document(source, mesh, lossy)}, RELEASE, lossy, rendered_config)


def _consumer_strategy(source: ExportSource, parts: ConsumerParts) -> tuple[Strategy, bool, tuple[str, ...]]:
    """Three values: the strategy as torchtitan runs it, whether its knobs can be compared with the measured ones, and
    notes on the differences."""
    if source.config.backend != "ddp":
        return parts.strategy, True, parts.notes
    # 0.3 has no DistributedDataParallel: fully_shard replicates over a mesh with one shard.
    strategy = Fsdp2Config(dp_replicate=source.cluster.world_size, dp_shard=1, reshard_after_forward=False)
    settings = ", ".join(
        f"{name} {value}" for name, value in source.config.strategy.model_dump(exclude={"kind"}).items()
    )
    note = (
        f"backend: ddp ({settings}) was measured; torchtitan replicates by fully_shard over one shard, without buckets"
    )
    return strategy, False, (note, *common.weights_differ(source, "torchtitan"))


def _chunks_loss(source: ExportSource) -> bool:
    """Whether the exported file computes the loss in chunks (`ChunkedLossWrapper`). It does not with pipeline stages,
    which torchtitan's documentation of the wrapper (0.3) does not mention."""
    return losses.is_chunked(source) and source.config.strategy.stages == 1


def _compiled(source: ExportSource) -> str:
    """Source of the keyword arguments that say what torchtitan compiles: blocks (`model`), the loss, or nothing."""
    compiles = {
        "model": float8.torchtitan_compiles(source),
        "loss": source.config.loss_compile and _chunks_loss(source),
    }
    components = [name for name, is_compiled in compiles.items() if is_compiled]
    return f"enable={bool(components)}, components={literal(components or ['model'])}"


def _loss(source: ExportSource) -> str:
    loss = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    if not _chunks_loss(source):
        return loss
    _tokens, chunks = _loss_chunks(source)
    return f"ChunkedLossWrapper.Config(loss_fn={loss}, num_chunks={chunks})"


def _loss_chunks(source: ExportSource) -> tuple[int, int]:
    """Number of tokens for which one rank would compute the loss without chunks, and number of chunks in which the
    measured trial computed it."""
    tokens = source.config.micro_batch * source.workload.sequence_length // source.config.context_parallel
    return tokens, math.ceil(tokens / source.config.loss_chunk)


def _document(source: ExportSource, mesh: dict[str, Any], lossy: tuple[str, ...]) -> str:
    config = source.config
    policy, own = _policy(config), _own_policy(config)
    parallelism = {name: value for name, value in mesh.items() if name != "enable_cpu_offload"}
    return fill(
        FILE,
        description=in_docstring(source.description),
        release=RELEASE,
        torchrun_options=environment.torchrun_options(source),
        nodes=environment.nodes_note(source, ""),
        lossy=comment(lossy, "", in_docstring),
        dataclass_import="from dataclasses import dataclass" if own else "",
        checkpointing_import=f"from torchtitan.distributed.activation_checkpoint import {policy}" if policy else "",
        policy=fill(own).rstrip() if own else "",
        model=literal(_folder(source)),
        flavor=literal(_flavor(source)),
        loss_import="ChunkedLossWrapper, CrossEntropyLoss" if _chunks_loss(source) else "CrossEntropyLoss",
        loss=_loss(source),
        optimizer=keywords(optimizers.exported(source).torchtitan(source.workload.optimizer)),
        training=_fields(_training(source, mesh)),
        parallelism=_fields(parallelism),
        checkpointing=_checkpointing(config, policy),
        converters=float8.torchtitan_converters(source),
        float8_import=_FLOAT8_IMPORT if float8.is_used(source) else "",
        compile=_compiled(source),
        seed=source.workload.seed,
    )


def _training(source: ExportSource, mesh: dict[str, Any]) -> dict[str, Any]:
    workload, config = source.workload, source.config
    return {
        # Under a pipeline torchtitan counts all micro batches of a step.
        "local_batch_size": config.micro_batch * (source.accumulation if config.strategy.stages > 1 else 1),
        "global_batch_size": workload.global_batch,
        "seq_len": workload.sequence_length,
        "max_norm": workload.max_grad_norm or _UNLIMITED,
        "enable_cpu_offload": mesh.get("enable_cpu_offload", False),
        # No trial captures graphs, and a pipeline or divided experts forbid them.
        "disable_cuda_graphs": True,
        "dtype": workload.precision.master_dtype,
        "mixed_precision_param": workload.precision.compute_dtype,
        "mixed_precision_reduce": "float32",
        **({"gc_freq": config.gc_every} if config.gc_every else {}),
    }


def _policy(config: TrialConfig) -> str:
    """Name of torchtitan's class that decides which activations are kept; empty if all are."""
    if config.activation_memory_budget < 1:
        return "MemoryBudgetAC"
    return {"none": "", "full": "FullAC", "selective": "SelectiveAC"}[config.activation_checkpointing]


def _counts_blocks(config: TrialConfig) -> bool:
    return config.activation_checkpointing == "full" and config.checkpoint_every > 1


def _own_policy(config: TrialConfig) -> str:
    """Name of the template of a policy that the exported file defines; empty if torchtitan has one."""
    if _counts_blocks(config):
        return "torchtitan_every_nth"
    return "torchtitan_attention" if config.selective_keeps == "attention" else ""


def _checkpointing(config: TrialConfig, policy: str) -> str:
    if not policy:
        return "None"
    if config.activation_memory_budget < 1:
        return f"{policy}.Config(memory_budget={config.activation_memory_budget})"
    if _counts_blocks(config):
        return f"EveryNth.Config(every={config.checkpoint_every}, preserve_rng_state=False)"
    if config.selective_keeps == "attention":
        policy = "AttentionAC"
    return f"{policy}.Config(preserve_rng_state=False)"


def _fields(values: dict[str, Any]) -> str:
    """Source lines of keyword arguments, one line each."""
    return indent([f"{name}={literal(value)}," for name, value in values.items()], 12)


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = [f"attention: {source.attention} was measured; torchtitan attends by FlexAttention, in blocks per document"]
    if _flavor(source) == SET_ME:
        lines.append(
            "model: the size is an entry of torchtitan's own table, not the study's config; set MODEL and FLAVOR"
        )
    if selective.is_used(source) and source.model_summary.moe_class and source.config.selective_keeps != "attention":
        lines.append("selective_keeps: products of experts were kept or counted; torchtitan computes them all again")
    if source.has_low_states:
        lines.append("precision: gradients reduced in bfloat16 were measured; torchtitan reduces them in float32")
    tokens, chunks = _loss_chunks(source)
    if _chunks_loss(source) and tokens != chunks * source.config.loss_chunk:
        lines.append(
            f"loss_chunk: {source.config.loss_chunk} tokens were measured; torchtitan divides {tokens} evenly by {chunks}"
        )
    lines += sample_lengths.torchtitan_notes(source)
    lines += float8.torchtitan_notes(source)
    return (*lines, *optimizers.lost_note(source, "torchtitan"), *adapters.lost_note(source, "torchtitan"))


def _folder(source: ExportSource) -> str:
    """Name of the model's architecture in torchtitan; `SET-ME` where torchtitan does not have this architecture."""
    return FOLDERS.get(str(source.study.spec.model.model_type), SET_ME)


def _flavor(source: ExportSource) -> str:
    """Name of the model's size in torchtitan's table of the architecture; `SET-ME` where no entry has the same number
    of parameters."""
    kind, parameters = source.study.spec.model.model_type, source.model_summary.parameters
    return next(
        (
            name
            for preset, name in FLAVORS.items()
            if preset_sources()[preset].parameters == parameters and preset_config(preset)["model_type"] == kind
        ),
        SET_ME,
    )
