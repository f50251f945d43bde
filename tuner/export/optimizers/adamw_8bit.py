"""8-bit AdamW's parts of exported files: Trainer has it by name, torchtitan 0.3 has not."""

from typing import Any

from shardtune.api_schemas.training.optimizers import AdamW8bit
from shardtune.tuner.export.optimizers import adamw
from shardtune.tuner.export.optimizers.record import ExportedOptimizer
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill


def _make(parameters: str, _blocks: str, _several_meshes: bool, _shard: str) -> str:
    return f"eight_bit_adamw({parameters})"


def _helpers(_several_meshes: bool) -> str:
    return fill("adamw_8bit")


def _torchtitan(settings: AdamW8bit) -> dict[str, Any]:
    return adamw.torchtitan(settings)


def _differs_in_trainer(source: ExportSource) -> tuple[str, ...]:
    """Note that the Trainer keeps 32-bit moments of embeddings; empty where that makes no difference. The Trainer asks
    bitsandbytes for 32 bits for every `nn.Embedding` (transformers 5.23), except that ZeRO's flat partitions hide
    embeddings from it, and adapters leave them frozen."""
    if source.config.backend != "ddp" or source.workload.adapter is not None:
        return ()
    return ("optimizer: the Trainer keeps float32 moments of embeddings, 6 bytes per element more than was measured",)


OPTIMIZER = ExportedOptimizer[AdamW8bit](
    adamw.constants,
    _make,
    _torchtitan,
    helpers=_helpers,
    differs_in_trainer=_differs_in_trainer,
    known_in=frozenset({"Trainer"}),
)
