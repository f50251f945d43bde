"""AdamW's parts of exported files."""

from typing import Any

from shardtune.api_schemas.training.optimizers import AdamW
from shardtune.tuner.export.optimizers.record import ExportedOptimizer
from shardtune.tuner.export.quoting import literal


def constants(settings: AdamW) -> list[str]:
    """Line of `train_snippet.py` that defines AdamW's settings."""
    values = {
        "lr": settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }
    return [f"ADAMW = {literal(values)}"]


def make(parameters: str, _blocks: str, several_meshes: bool) -> str:
    """Source of the expression that makes AdamW in `train_snippet.py`."""
    # torch 2.13 has no operator over tensors of several meshes, so the optimizer takes groups by mesh.
    groups = f'[{{"params": group}} for group in by_mesh({parameters})]' if several_meshes else parameters
    return f"torch.optim.AdamW({groups}, fused=True, **ADAMW)"


def torchtitan(settings: AdamW) -> dict[str, Any]:
    """Section `optimizer` of torchtitan's file for AdamW."""
    return {
        "name": "AdamW",
        "lr": settings.lr,
        "beta1": settings.beta1,
        "beta2": settings.beta2,
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
        "implementation": "fused",
    }


OPTIMIZER = ExportedOptimizer[AdamW](constants, make, torchtitan)
