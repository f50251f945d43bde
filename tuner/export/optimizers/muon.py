"""Muon's parts of exported files; Trainer has no Muon, and torchtitan 0.3 an own one (`DistMuon`), which was not tried."""

from typing import Any

from shardtune.api_schemas.training.optimizers import Muon
from shardtune.tuner.export.optimizers import adamw
from shardtune.tuner.export.optimizers.record import ExportedOptimizer
from shardtune.tuner.export.quoting import literal
from shardtune.tuner.export.templates import fill


def _constants(settings: Muon) -> list[str]:
    values = settings.model_dump(exclude={"kind", "adamw"})
    return [f"MUON = {literal(values)}", *adamw.constants(settings.adamw)]


def _make(parameters: str, blocks: str, _several_meshes: bool, _shard: str) -> str:
    return f"MuonAndAdamW({parameters}, {blocks})"


def _helpers(several_meshes: bool) -> str:
    return fill("muon", adamw=adamw.make("others", "blocks", several_meshes))


def _torchtitan(settings: Muon) -> dict[str, Any]:
    return adamw.torchtitan(settings.adamw)


OPTIMIZER = ExportedOptimizer[Muon](
    _constants, _make, _torchtitan, helpers=_helpers, needs_blocks=True, known_in=frozenset()
)
