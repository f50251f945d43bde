"""Export of a measured configuration as `accelerate.yaml`: settings that Accelerate's configuration file can express,
and comments on the other settings."""

from typing import Any

import yaml

from shardtune.tuner.export import adapters, context, environment, losses, optimizers, sample_lengths
from shardtune.tuner.export.backends import activation_offload as offload
from shardtune.tuner.export.backends import common, memory_budget, mlp_slices, selective
from shardtune.tuner.export.backends.record import AccelerateParts
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.precision import float8, loss_scale
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill


def document(source: ExportSource, backends: Backends = BACKENDS) -> str:
    """Text of the exported `accelerate.yaml`."""
    parts = backends[source.config.backend].accelerate(source, source.config.strategy)
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU" if source.on_cpu else "MULTI_GPU",
        "use_cpu": source.on_cpu,
        "num_machines": source.cluster.nodes,
        "machine_rank": 0,
        "num_processes": source.cluster.world_size,
        "mixed_precision": _mixed_precision(source),
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
    }
    if source.config.numa_binding == "node" and not source.on_cpu:
        values["enable_cpu_affinity"] = True
    values |= parts.values
    stated = {name: value for name, value in values.items() if value is not None}
    comments = "\n".join(
        f"# {remark(line)}"
        for line in [
            *environment.notes(source),
            "In your script:",
            *(f"- {line}" for line in (*_script_lines(source, parts), *_lost_lines(source, parts))),
        ]
    )
    return fill(
        "accelerate.yaml",
        description=remark(source.description),
        start=remark(_start_command(source, parts)),
        comments=comments,
        document=yaml.safe_dump(stated, sort_keys=False).rstrip(),
    )


def lost(source: ExportSource, backends: Backends = BACKENDS) -> tuple[str, ...]:
    """Notes on settings that `accelerate.yaml` and Accelerate's own options cannot express; its comments hold them, too."""
    parts = backends[source.config.backend].accelerate(source, source.config.strategy)
    ignored = []
    if source.on_cpu and loss_scale.is_used(source):
        ignored.append("precision: on CPU ranks accelerate trains no float16")
    elif source.on_cpu and parts.ignored_on_cpu is not None:
        ignored.append(f"backend: on CPU ranks accelerate ignores {parts.ignored_on_cpu} and trains whole replicas")
    return (*ignored, *_lost_lines(source, parts))


def _lost_lines(source: ExportSource, parts: AccelerateParts) -> tuple[str, ...]:
    return (
        *parts.lost,
        *_lost_binding(source),
        *context.accelerate_notes(source),
        *common.accelerate_losses(source, source.config),
        *offload.accelerate_losses(source),
    )


def _lost_binding(source: ExportSource) -> tuple[str, ...]:
    option = environment.torchrun_binding(source)
    # `enable_cpu_affinity` stands for `node`.
    if not option or source.config.numa_binding == "node":
        return ()
    return (
        f"numa_binding={source.config.numa_binding!r} cannot be expressed here: start the ranks by torchrun {option}",
    )


def _mixed_precision(source: ExportSource) -> str:
    """Name of the mixed precision in Accelerate's file; `no` for a model that trains in bfloat16 throughout, because
    Accelerate's mixed precision would cast it back."""
    names = {"float32": "no", "bfloat16": "no" if source.has_low_states else "bf16", "float16": "fp16"}
    return names[source.workload.precision.compute_dtype]


def _start_command(source: ExportSource, parts: AccelerateParts) -> str:
    """Command that starts a training script: `launch.sh`, or Accelerate's own command where a user's script has no
    `launch.sh` beside it."""
    is_own = source.study.spec.model.is_own
    instead = "your own launcher" if is_own else "./launch.sh alone, which runs train_snippet.py"
    if source.on_cpu and loss_scale.is_used(source):
        return f"{instead} (on CPU ranks accelerate trains no float16: it leaves {source.config.backend} in float32, or fails)."
    if source.on_cpu and parts.ignored_on_cpu is not None:
        return f"{instead} (on CPU ranks accelerate ignores {parts.ignored_on_cpu} and trains whole replicas)."
    if not is_own:
        return "./launch.sh accelerate YOUR_SCRIPT.py (its script must use accelerate.Accelerator)."
    # Without mpirun, accelerate starts one process for MULTI_CPU; its GPU launcher starts all of them.
    prefix, options = ("ACCELERATE_USE_CPU=true ", " --multi_gpu") if source.on_cpu else ("", "")
    if source.cluster.nodes > 1:
        options += " --main_process_ip FIRST_HOST --machine_rank N"
    line = f"{prefix}accelerate launch --config_file accelerate.yaml{options} YOUR_SCRIPT.py"
    return f"{line} (which must use accelerate.Accelerator)."


def _accumulation_argument(source: ExportSource, parts: AccelerateParts) -> str:
    """Source text of the gradient-accumulation argument of Accelerate's `Accelerator`."""
    if parts.reduces_every:
        # `accumulate` alone would reduce after the last micro batch only (Accelerate 1.15).
        return f"gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps={source.accumulation}, sync_each_batch=True)"
    return f"gradient_accumulation_steps={source.accumulation}"


def _script_lines(source: ExportSource, parts: AccelerateParts) -> list[str]:
    """Lines that the user's script needs to train under Accelerate as the trial did."""
    config = source.config
    lines = [f"data loader batch size {config.micro_batch}, sequence length {source.workload.sequence_length}"]
    if parts.accumulates:
        lines.append(f"Accelerator({_accumulation_argument(source, parts)}), with accelerator.accumulate(model)")
        if source.workload.max_grad_norm is not None:
            lines.append(f"accelerator.clip_grad_norm_(model.parameters(), {source.workload.max_grad_norm})")
    lines += [
        *common.loaded_low(source),
        *parts.script_lines,
        *losses.accelerate_notes(source),
        *mlp_slices.accelerate_notes(source),
        *adapters.accelerate_notes(source),
        *sample_lengths.script_notes(source),
        *float8.script_notes(source, "your script, before accelerator.prepare"),
    ]
    if config.checkpoints_whole_blocks:
        offloads = "offload=True" if config.activation_offload else ""
        name = "activation_checkpointing_enable" if offloads else "gradient_checkpointing_enable"
        lines += [] if parts.checkpoints else [f"model.{name}({offloads})"]
    elif config.activation_checkpointing != "none":
        words = selective.words(source) + offload.words(source)
        instruction = "take `checkpointed`, its dependencies and its loop from train_snippet.py"
        lines.append(f"{words}: {f'see {source.shown_in}' if source.study.spec.model.is_own else instruction}")
    lines += optimizers.own_note(source, "your script")
    if config.compile:
        lines.append(f"compile each block: see {source.shown_in}")
    lines += memory_budget.accelerate_notes(source)
    return lines
