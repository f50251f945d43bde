"""`torchtitan.toml` for torchtitan 0.2.2, the last release that reads TOML; what it does besides is from its sources."""

from typing import Any

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.tuner.export.rendered import Rendered, comment, differences
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill

RELEASE = "torchtitan 0.2.2"
_BUCKET_CAP_MB = 100
"""models/llama3/infra/parallelize.py, apply_ddp."""


def render(source: ExportSource) -> Rendered:
    """One file.

    Raises:
        ValueError: torchtitan has no such backend.
    """
    config = source.config
    done = _done(config, source.accumulation)
    lossy = (*differences(config, done, "torchtitan"), *_besides(source))
    text = fill(
        "torchtitan.toml",
        description=source.contender.description,
        release=RELEASE,
        lossy=comment(lossy, "# "),
        document=_toml(_sections(source)),
    )
    return Rendered({"torchtitan.toml": text}, RELEASE, lossy, done)


def _sections(source: ExportSource) -> dict[str, dict[str, Any]]:
    workload, optimizer, config = source.workload, source.workload.optimizer, source.config
    strategy = config.strategy
    replicate, shard = (
        (strategy.dp_replicate, strategy.dp_shard)
        if isinstance(strategy, Fsdp2Config)
        else (source.cluster.world_size, 1)
    )
    reshards = isinstance(strategy, Fsdp2Config) and strategy.reshard_after_forward is not False
    sections: dict[str, dict[str, Any]] = {
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
            "local_batch_size": config.micro_batch,
            "global_batch_size": workload.global_batch,
            "seq_len": workload.sequence_length,
            "max_norm": workload.max_grad_norm or 1e9,
            "enable_cpu_offload": isinstance(strategy, Fsdp2Config) and strategy.cpu_offload,
            "dtype": workload.recipe.master_dtype,
            "mixed_precision_param": workload.recipe.compute_dtype,
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_replicate_degree": replicate,
            "data_parallel_shard_degree": shard,
            "fsdp_reshard_after_forward": "always" if reshards else "never",
        },
        "activation_checkpoint": {
            "mode": config.activation_checkpointing,
            "selective_ac_option": "op",
            "preserve_rng_state": False,
        },
        "compile": {"enable": config.compile, "components": ["model"]},
        "debug": {"seed": workload.seed},
    }
    return sections


_MODELS = {"llama": "llama3", "qwen3": "qwen3"}
"""torchtitan's names of architectures; the size ("flavor") is one of its own table."""


def _done(config: TrialConfig, accumulation: int) -> TrialConfig:
    """What torchtitan does with the file: no prefetch of its own, a unit per block, gradients reduced every micro batch."""
    strategy = config.strategy
    if isinstance(strategy, DdpConfig):
        fixed: dict[str, Any] = {
            "bucket_cap_mb": _BUCKET_CAP_MB,
            "gradient_as_bucket_view": False,
            "static_graph": False,
            "grad_sync": "every" if accumulation > 1 else strategy.grad_sync,
        }
        return config.model_copy(update={"strategy": strategy.model_copy(update=fixed)})
    if isinstance(strategy, Fsdp2Config):
        plain = strategy.as_accelerate_runs_it(accumulation)
        sync = {"grad_sync": "every" if accumulation > 1 else strategy.grad_sync}
        return config.model_copy(update={"strategy": Fsdp2Config.model_validate({**plain.model_dump(), **sync})})
    raise ValueError(
        f"backend ({config.backend!r}) is not in {RELEASE}; export a trial of fsdp2 or ddp with --which NUMBER"
    )


def _besides(source: ExportSource) -> tuple[str, ...]:
    lines = ["model: the size is a flavor of torchtitan's own table, not the study's config; set model.flavor"]
    if source.config.activation_checkpointing == "selective":
        lines.append(
            "activation_checkpointing: all matrix products are kept in the trial; torchtitan keeps every second"
        )
    if isinstance(source.config.strategy, Fsdp2Config):
        lines.append("units: torchtitan also shards the embedding, and norm with output, as units of their own")
    elif source.is_mixed:
        lines.append("recipe: norms and softmax in bfloat16 were measured; torchtitan's autocast keeps them in float32")
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
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return repr(value)
