"""Export for Lightning 2.6 as `lightning_strategy.py`: functions that return the strategy object and the Trainer's
arguments."""

from typing import Any

from shardtune.api_schemas.strategies import ZeroConfig
from shardtune.tuner.export import adapters, environment, losses, optimizers, sample_lengths
from shardtune.tuner.export.backends import activation_offload as offload
from shardtune.tuner.export.backends import memory_budget, mlp_slices, selective
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.precision import float8, loss_scale
from shardtune.tuner.export.quoting import in_docstring
from shardtune.tuner.export.source import ExportSource, reject_axes
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.trial_rendering import Rendered, comment, differences, note_texts, pretty, run_by

RELEASE = "lightning 2.6"


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported file for Lightning, `lightning_strategy.py`.

    Raises:
        ValueError: Lightning has no such backend, or the export cannot express it.
    """
    config = source.config
    # Lightning's Trainer counts devices as data-parallel ranks.
    reject_axes(source, "Lightning's Trainer")
    render_parts = backends[config.backend].lightning
    if render_parts is None:
        raise ValueError(
            f"backend ({config.backend!r}) cannot be expressed in this export; export another configuration"
        )
    parts = render_parts(source, config.strategy)
    rendered_config = run_by(config, "lightning", strategy=parts.strategy)
    lossy = (
        *note_texts(differences(config, rendered_config, "lightning")),
        *_notes(source),
        *parts.notes,
        *environment.notes(source),
    )
    text = fill(
        "lightning_strategy.py",
        description=in_docstring(source.description),
        release=RELEASE,
        lossy=comment(lossy, "", in_docstring),
        names=parts.values["class"],
        strategy=parts.values["strategy"],
        trainer=pretty(_trainer_arguments(source, parts.values["casts"])),
        extra=parts.code,
    )
    return Rendered({"lightning_strategy.py": text}, RELEASE, lossy, rendered_config)


def _trainer_arguments(source: ExportSource, casts: bool) -> dict[str, Any]:
    cluster, workload = source.cluster, source.workload
    return {
        "accelerator": "cpu" if source.on_cpu else "gpu",
        "devices": cluster.gpus_per_node,
        "num_nodes": cluster.nodes,
        "precision": _precision(source, casts),
        "accumulate_grad_batches": source.accumulation,
        "gradient_clip_val": workload.max_grad_norm,
    }


def _precision(source: ExportSource, casts: bool) -> str:
    """Lightning's name of the precision."""
    if loss_scale.is_used(source):
        return "16-mixed"
    return "bf16-true" if source.has_low_states else "bf16-mixed" if casts else "32-true"


def _steps_on_host(source: ExportSource) -> bool:
    """Whether DeepSpeed steps offloaded states, for which it rejects torch's optimizers (0.19.8)."""
    strategy = source.config.strategy
    return isinstance(strategy, ZeroConfig) and strategy.offload_optimizer is not None


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = [f"micro batch: the data loader's batch size must be {source.config.micro_batch}"]
    config = source.config
    if config.activation_checkpointing != "none":
        words = selective.words(source)
        lines.append(f"activation_checkpointing: apply it ({words}) in your module: see {source.shown_in}")
    lines += offload.lightning_notes(source)
    lines += mlp_slices.lightning_notes(source)
    if config.compile:
        lines.append(f"compile: compile each block in your module: see {source.shown_in}")
    lines += memory_budget.lightning_notes(source)
    lines += [*adapters.trainer_notes(source, "your module"), *sample_lengths.script_notes(source)]
    return (
        *lines,
        *losses.lightning_notes(source),
        *float8.script_notes(source, "your module"),
        *optimizers.own_note(source, "your module", on_host=_steps_on_host(source)),
    )
