"""AdamW's parts of exported files."""

from typing import Any

from shardtune.api_schemas.training.optimizers import AdamSettings, AdamW
from shardtune.tuner.export.optimizers.record import ExportedOptimizer
from shardtune.tuner.export.quoting import literal
from shardtune.tuner.export.source import ExportSource


def constants(settings: AdamSettings) -> list[str]:
    """Line of `train_snippet.py` that defines AdamW's settings."""
    return [f"ADAMW = {literal(_settings(settings))}"]


def make(parameters: str, _blocks: str, several_meshes: bool, _shard: str = "0") -> str:
    """Source of the expression that makes AdamW in `train_snippet.py`."""
    # torch 2.13 has no operator over tensors of several meshes, so the optimizer takes groups by mesh.
    groups = f'[{{"params": part}} for part in by_mesh({parameters})]' if several_meshes else parameters
    return f"torch.optim.AdamW({groups}, fused=True, **ADAMW)"


def own_note(source: ExportSource, place: str, *, on_host: bool) -> str:
    """Note with the call that makes AdamW as measured, for a program in which the user's code makes it. `on_host`:
    whether it must be DeepSpeed's optimizer for offloaded states."""
    settings = source.workload.optimizer
    assert isinstance(settings, AdamW), "each other optimizer has a note of its own"
    # Beside the scaler that Accelerate takes for FSDP, the fused kernel raises an error (torch 2.13).
    is_fused = not (source.workload.precision.scales_loss and source.config.backend in ("fsdp1", "fsdp2"))
    name, further = "torch.optim.AdamW", {"fused": True} if is_fused else {}
    if on_host:
        name, further = "deepspeed.ops.adam.DeepSpeedCPUAdam", {"adamw_mode": True}
    options = ", ".join(f"{key}={literal(value)}" for key, value in {**_settings(settings), **further}.items())
    return f"optimizer: make {name}(…, {options}) in {place}"


def torchtitan(settings: AdamSettings) -> dict[str, Any]:
    """Arguments of torchtitan's `default_adamw`, which makes a fused AdamW."""
    return _settings(settings)


def _settings(settings: AdamSettings) -> dict[str, Any]:
    return {
        "lr": settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }


OPTIMIZER = ExportedOptimizer[AdamW](constants, make, torchtitan, known_in=None)
