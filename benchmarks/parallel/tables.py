"""Read the published sweeps: `nanotron_sweep.csv` and `aleph_alpha_layouts.csv`, or other files of the same columns."""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from benchmarks.parallel.layout import NANOTRON, SCALING, Layout, Program, Training
from shardtune.api_schemas.base import GIB
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.model_shape import ModelShape, Norm
from shardtune.tuner.prediction.rates import network_of, rates_of

_NODE = 8
_GPUS = {"H100-80GB": "NVIDIA H100 80GB HBM3", "A100-80GB": "NVIDIA A100-SXM4-80GB"}
_MODELS: dict[str, tuple[int, int, int, int, bool]] = {
    "1B": (16, 2048, 32, 8192, True), "3B": (28, 3072, 24, 8192, True), "8B": (32, 4096, 32, 14336, False),
    "80B": (80, 8192, 64, 28672, False), "13B": (40, 5120, 40, 13824, False), "30B": (60, 6656, 52, 17920, False),
    "65B": (80, 8192, 64, 22016, False),
}  # fmt: skip
"""Layers, hidden size, heads, width of the MLP, and whether the tables are tied."""
_GLOBAL_BATCH = {2048: 2048, 8192: 512}
"""Aleph Alpha's, by sequence (arXiv:2311.05610, section 3)."""

NANOTRON_COLUMNS = ("model", "gpu", "n_gpus", "gbs_sequences", "dp", "tp", "pp", "micro_batch", "zero_stage", "status", "tokens_per_s")  # fmt: skip
ALEPH_COLUMNS = (
    "table", "model", "seq_len", "gpu", "World Size", "activation_checkpointing_type", "kernel", "micro_batch_size",
    "model_parallel_size", "pipe_parallel_size", "sequence_parallel", "status", "Average Step Time",
)  # fmt: skip
Row = Mapping[str, str]


class Misread(ValueError):
    """A file in neither format, or a cell that nobody can read."""


@dataclass(frozen=True)
class Measured:
    """One row: a layout, and what became of it."""

    training: Training
    layout: Layout
    seconds: float | None
    """Seconds of a step; None where it did not run."""
    status: str
    """The sweep's word for what became of it."""
    kernel: str = ""
    """The sweep's name for attention and norms, where it tries several."""


def read(path: Path) -> dict[str, list[Measured]]:
    """Rows by table.

    Raises:
        Misread: the columns are of neither sweep, or a row holds what nobody knows.
    """
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        names = set(reader.fieldnames or ())
        recorded: tuple[tuple[tuple[str, ...], Callable[[Row], tuple[str, Measured]]], ...] = (
            (NANOTRON_COLUMNS, _nanotron),
            (ALEPH_COLUMNS, _aleph),
        )
        parse = next((parse for columns, parse in recorded if names.issuperset(columns)), None)
        if parse is None:
            lacking = min((sorted(set(columns) - names) for columns, _ in recorded), key=len)
            raise Misread(f"columns ({', '.join(lacking)}) are missing; keep the header of a published sweep")
        tables: dict[str, list[Measured]] = defaultdict(list)
        for row in reader:
            try:
                name, measured = parse(row)
            except (KeyError, TypeError, ValueError) as error:
                raise Misread(f"line ({reader.line_num}) cannot be read: {error}; correct or drop it") from None
            tables[name].append(measured)
    return tables


def _nanotron(row: Row) -> tuple[str, Measured]:
    batch = _count(row, "gbs_sequences")
    training = _training(row["model"], row["gpu"], 4096, batch, NANOTRON, 131_072)
    layout = Layout(
        dp=_count(row, "dp"),
        tp=_count(row, "tp"),
        pp=_count(row, "pp"),
        micro_batch=_count(row, "micro_batch"),
        zero=row["zero_stage"] == "1",
        checkpointing=False,
    )
    seconds = batch * 4096 / _positive(row, "tokens_per_s") if row["status"] == "ok" else None
    name = f"{row['model']}, {row['n_gpus']} {row['gpu'].partition('-')[0]}"
    return name, Measured(training, layout, seconds, row["status"])


def _aleph(row: Row) -> tuple[str, Measured]:
    sequence = _count(row, "seq_len")
    tensor, stages = _count(row, "model_parallel_size"), _count(row, "pipe_parallel_size")
    kernel, splits_positions = row["kernel"], row["sequence_parallel"] == "1"
    program = _scaling_program(kernel, splits_positions)
    norm = "rms_fused" if "RMS" in kernel else "rms"
    training = _training(row["model"], row["gpu"], sequence, _GLOBAL_BATCH[sequence], program, 128_000, norm)
    layout = Layout(
        dp=_count(row, "World Size") // (tensor * stages),
        tp=tensor,
        pp=stages,
        micro_batch=_count(row, "micro_batch_size"),
        zero=True,
        checkpointing=row["activation_checkpointing_type"] != "disabled",
    )
    seconds = _positive(row, "Average Step Time") if row["status"] == "ok" else None
    return row["table"], Measured(training, layout, seconds, row["status"], kernel)


def _count(row: Row, column: str) -> int:
    value = int(row[column])
    if value < 1:
        raise ValueError(f"{column} ({value}) must be at least 1")
    return value


def _positive(row: Row, column: str) -> float:
    value = float(row[column])
    if not 0 < value < math.inf:
        raise ValueError(f"{column} ({row[column]}) must be a positive number")
    return value


@lru_cache
def _scaling_program(kernel: str, splits_positions: bool) -> Program:
    attention: Literal["eager", "fused", "flash"] = (
        "eager" if kernel == "torch" else "fused" if kernel == "fused" else "flash"
    )
    implementation = replace(
        SCALING.implementation,
        attention=attention,
        # The first FlashAttention has about half of FlashAttention-2's rate (arXiv:2307.08691, figure 5).
        attention_rate=0.5 if "v1" in kernel else 1.0,
        splits_positions=splits_positions,
    )
    return replace(SCALING, implementation=implementation)


@lru_cache
def _training(
    model: str, gpu: str, sequence: int, batch: int, program: Program, vocab: int, norm: Norm = "rms_fused"
) -> Training:
    layers, hidden, heads, ffn, tied = _MODELS[model]
    shape = ModelShape(model, layers, hidden, heads, heads, hidden // heads, ffn, vocab, norm=norm, tied=tied)
    find = catalogue.find(_GPUS[gpu])
    capacity = (find.memory_gib or 0) * GIB
    return Training(shape, sequence, batch, program, rates_of(find), network_of(find, _NODE), capacity, find.name)
