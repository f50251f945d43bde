"""Export for torchtitan 0.2.2 as `torchtitan.toml`. That is the last release that reads TOML; other facts about it are
from its source code."""

from typing import Any

from shardtune.tuner.export import context, environment
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.quoting import remark, toml_string
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.trial_rendering import Rendered, comment, differences, run_by

RELEASE = "torchtitan 0.2.2"


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported file for torchtitan, `torchtitan.toml`.

    Raises:
        ValueError: torchtitan has no such backend.
    """
    config = source.config
    render_parts = backends[config.backend].torchtitan
    if render_parts is None:
        raise ValueError(
            f"backend ({config.backend!r}) is not in {RELEASE}; export a trial of fsdp2 or ddp with --which NUMBER"
        )
    parts = render_parts(source, config.strategy)
    mesh = context.torchtitan_mesh(source, parts.values)
    # torchtitan's selective mode counts blocks as we do, and keeps only the input of the chosen blocks.
    every = config.checkpoint_every if config.activation_checkpointing == "full" else 1
    rendered_config = run_by(config, "torchtitan", strategy=parts.strategy, checkpoint_every=every)
    besides = (*_notes(source), *context.torchtitan_notes(source), *parts.notes, *environment.notes(source))
    lossy = (*differences(config, rendered_config, "torchtitan"), *besides)
    text = fill(
        "torchtitan.toml",
        description=remark(source.description),
        release=RELEASE,
        lossy=comment(lossy, "# "),
        document=_toml(_sections(source, mesh)),
    )
    return Rendered({"torchtitan.toml": text}, RELEASE, lossy, rendered_config)


def _sections(source: ExportSource, mesh: dict[str, Any]) -> dict[str, dict[str, Any]]:
    workload, optimizer, config = source.workload, source.workload.optimizer, source.config
    counts_blocks = config.activation_checkpointing == "full" and config.checkpoint_every > 1
    return {
        "model": {"name": _MODELS.get(str(source.study.spec.model.model_type), "SET-ME"), "flavor": "SET-ME"},
        "optimizer": {
            "name": "AdamW",
            "lr": optimizer.lr,
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
            "implementation": "fused",
        },
        "lr_scheduler": {"warmup_steps": 0, "decay_ratio": 0.0},
        "training": {
            # Under a pipeline torchtitan counts all micro batches of a step.
            "local_batch_size": config.micro_batch * (source.accumulation if config.strategy.stages > 1 else 1),
            "global_batch_size": workload.global_batch,
            "seq_len": workload.sequence_length,
            "max_norm": workload.max_grad_norm or 1e9,
            "enable_cpu_offload": mesh.get("enable_cpu_offload", False),
            "dtype": workload.precision.master_dtype,
            "mixed_precision_param": workload.precision.compute_dtype,
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {name: value for name, value in mesh.items() if name != "enable_cpu_offload"},
        "activation_checkpoint": {
            "mode": "selective" if counts_blocks else config.activation_checkpointing,
            "selective_ac_option": str(config.checkpoint_every) if counts_blocks else "op",
            "preserve_rng_state": False,
        },
        "compile": {"enable": config.compile, "components": ["model"]},
        "debug": {"seed": workload.seed},
    }


_MODELS = {"llama": "llama3", "qwen3": "qwen3", "qwen3_moe": "qwen3", "deepseek_v3": "deepseek_v3"}
"""Name in torchtitan of each supported architecture; the model's size ("flavor") must be an entry of torchtitan's own
table."""


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = ["model: the size is a flavor of torchtitan's own table, not the study's config; set model.flavor"]
    if source.config.activation_checkpointing == "selective":
        lines.append(
            "activation_checkpointing: all matrix products are kept in the trial; torchtitan keeps every second"
        )
    return tuple(lines)


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    blocks = []
    for name, values in sections.items():
        blocks.append("\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in values.items())]))
    return "\n\n".join(blocks)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return repr(value)
