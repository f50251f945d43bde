"""Parts of exported files for AdamW with stochastic rounding; neither Trainer nor torchtitan 0.3 has it."""

from typing import Any

from shardtune.api_schemas.training.optimizers import AdamWBf16
from shardtune.tuner.export.optimizers import adamw
from shardtune.tuner.export.optimizers.record import ExportedOptimizer
from shardtune.tuner.export.templates import fill


def _make(parameters: str, _blocks: str, _several_meshes: bool, shard: str) -> str:
    return f"StochasticAdamW({parameters})" if shard == "0" else f"StochasticAdamW({parameters}, {shard})"


def _helpers(_several_meshes: bool) -> str:
    return fill("adamw_bf16")


def _torchtitan(settings: AdamWBf16) -> dict[str, Any]:
    return adamw.torchtitan(settings)


OPTIMIZER = ExportedOptimizer[AdamWBf16](adamw.constants, _make, _torchtitan, helpers=_helpers, known_in=frozenset())
