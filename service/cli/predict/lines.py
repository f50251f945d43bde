"""Predictions as tables for a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.trials.predictions import Prediction, PredictionTable

_WIDTH = 150
"""Of a table that is not on a terminal."""


def show(table: PredictionTable) -> None:
    """Print the table and, per strategy, where its memory goes."""
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    cluster = table.cluster
    console.print(
        f"{table.model}: {_count(table.parameters)} parameters, sequence {table.sequence_length}, {table.precision}, "
        f"{cluster.nodes} × {cluster.gpus_per_node} {cluster.gpu} of {memory(cluster.memory_gib)}"
    )
    if table.precision_note is not None:
        console.print(table.precision_note)
    console.print(
        "Predicted, not measured. Memory of the fullest rank, of what a rank may use; intervals of 90 %; speed as if it fitted."
    )
    console.print("longest: tokens per sample that still fit; micro: largest micro batch that still fits.")
    if table.fastest:
        console.print(
            f"\nThe fastest at a global batch of {table.global_batch:,} samples: those that fit, then those that may:",
            style="bold",
        )
        console.print(_overview(table.fastest))
    elif table.global_batch is not None:
        why = "fits" if any(one.speed for one in table.predictions) else "can be ranked: the GPU's rates are unknown"
        console.print(f"\nNo configuration {why} at a global batch of {table.global_batch:,} samples.", style="bold")
    console.print("\nOne of each strategy, whether it fits or not:", style="bold")
    console.print(_overview(table.predictions))
    for prediction in (*table.fastest[:1], *table.predictions):
        _explain(console, prediction)
    for note in table.notes:
        console.print(f"note: {note}", style="dim")


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.2f} million"


def _overview(predictions: Sequence[Prediction]) -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in (
        "configuration",
        "fits",
        "memory",
        "of",
        "tokens/s/GPU",
        "MFU",
        "exposed comm",
        "bound by",
        "longest",
        "micro",
    ):
        shown.add_column(heading, justify="left" if heading in ("configuration", "fits", "bound by") else "right")
    for one in predictions:
        peak, speed = one.memory, one.speed
        fits = f"{peak.verdict} by {memory(-peak.margin_gib)}" if peak.verdict == "does not fit" else peak.verdict
        row = [one.description, fits, memory(peak.total_gib), memory(peak.capacity_gib)]
        if speed is None:
            row += ["unknown GPU rates", "", "", ""]
        else:
            low, high = speed.low_tokens_per_s_per_gpu, speed.high_tokens_per_s_per_gpu
            row.append(f"{speed.tokens_per_s_per_gpu:,.0f} ({low:,.0f}–{high:,.0f})")
            row.append("" if speed.mfu is None else f"{speed.mfu:.0%}")
            row += [f"{speed.exposed_communication_fraction:.0%}", speed.bound_by]
        shown.add_row(*row, f"{one.longest_sequence:,}", f"{one.largest_micro_batch:,}")
    return shown


def _explain(console: Console, one: Prediction) -> None:
    peak = one.memory
    shown = (term for term in peak.terms if term.gib >= 0.01 * peak.total_gib)
    terms = ", ".join(f"{term.name} {memory(term.gib)}" for term in shown)
    interval = f"{memory(peak.low_gib)} to {memory(peak.high_gib)}"
    console.print(f"\n{one.description} (peak at {peak.moment}; {interval})")
    console.print(f"  {terms}")
    if peak.host_gib_per_node:
        console.print(f"  host memory per node: {memory(peak.host_gib_per_node)}")
    if one.cheapest_change is not None:
        change = one.cheapest_change
        console.print(f"  should fit with: {change.description} ({memory(change.total_gib)})")
