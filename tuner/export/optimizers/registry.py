"""Registry of the exported optimizers by kind, and the phrases that the exports of several programs share."""

from collections.abc import Mapping
from typing import Any

from shardtune.tuner.export.optimizers import adamw, adamw_8bit, adamw_bf16, muon
from shardtune.tuner.export.optimizers.record import ExportedOptimizer
from shardtune.tuner.export.source import ExportSource

OPTIMIZERS: Mapping[str, ExportedOptimizer[Any]] = {
    "adamw": adamw.OPTIMIZER,
    "adamw-8bit": adamw_8bit.OPTIMIZER,
    "adamw-bf16": adamw_bf16.OPTIMIZER,
    "muon": muon.OPTIMIZER,
}


def exported(source: ExportSource) -> ExportedOptimizer[Any]:
    """Export functions of the study's optimizer."""
    return OPTIMIZERS[source.workload.optimizer.kind]


def make(source: ExportSource, parameters: str, blocks: str, several_meshes: bool = False, shard: str = "0") -> str:
    """Source of the expression that makes the study's optimizer in `train_snippet.py`. `shard`: source of the index of
    the rank's shard, for parameters that are plain tensors."""
    return exported(source).make(parameters, blocks, several_meshes, shard)


def own_note(source: ExportSource, place: str, *, on_host: bool = False) -> tuple[str, ...]:
    """Note that the user's code must make the optimizer itself, because the program does not; empty where a script of
    the user's own made it in the trial, too. `on_host`: whether it must be DeepSpeed's optimizer for offloaded
    states."""
    if exported(source).known_in is None:
        return () if source.study.spec.model.script is not None else (adamw.own_note(source, place, on_host=on_host),)
    return (f"optimizer: make {source.workload.optimizer.title} in {place}: see {source.shown_in}",)


def lost_note(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Note that a program does not support the study's optimizer and trains with AdamW; if it does support it, notes on
    how it differs."""
    known_in = exported(source).known_in
    if known_in is None or consumer in known_in:
        return exported(source).differs_in_trainer(source)
    title = source.workload.optimizer.title
    return (f"optimizer: {title} was measured; {consumer} trains with AdamW here. Make it as in {source.shown_in}",)
