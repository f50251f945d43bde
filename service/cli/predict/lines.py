"""Print predictions as tables on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardtune.api_schemas.trials.predictions import Prediction, PredictionTable
from shardtune.service.cli.terminal import PrintableConsole

_WIDTH = 150
"""Characters per line where stdout is not a terminal."""


def show(table: PredictionTable) -> None:
    """Print the table and, for each strategy, the terms of its memory."""
    # Rich assumes 80 columns for a pipe, and would break each row over several lines.
    console = PrintableConsole(width=None if Console().is_terminal else _WIDTH, highlight=False)
    cluster = table.cluster
    # AdamW is what everybody expects.
    trained_with = "" if table.optimizer == DEFAULT_OPTIMIZER else f"{OPTIMIZERS[table.optimizer].title}, "
    console.print(
        f"{table.model}: {_parameter_count(table.parameters)} parameters, sequence {table.sequence_length}, {table.precision}, "
        f"{trained_with}{cluster.nodes} × {cluster.gpus_per_node} {cluster.gpu} of {memory(cluster.memory_gib)}"
    )
    if table.precision_note is not None:
        console.print(table.precision_note)
    console.print(
        "Predicted, not measured. Memory: fullest rank against its limit. Speed: as if it fits. Intervals: 90 %."
    )
    console.print("longest: tokens per sample that still fit; micro: largest micro batch that still fits.")
    if table.fastest:
        console.print(
            f"\nFastest configurations at a global batch of {table.global_batch:,} samples (fitting ones first, then uncertain ones):",
            style="bold",
        )
        console.print(_prediction_table(table.fastest))
    elif table.global_batch is not None:
        reason = (
            "fits"
            if any(prediction.speed for prediction in table.predictions)
            else "can be ranked: the GPU's rates are unknown"
        )
        console.print(f"\nNo configuration {reason} at a global batch of {table.global_batch:,} samples.", style="bold")
    console.print("\nOne configuration of each strategy, whether it fits or not:", style="bold")
    console.print(_prediction_table(table.predictions))
    for prediction in (*table.fastest[:1], *table.predictions):
        _print_memory_terms(console, prediction)
    for note in table.notes:
        console.print(f"note: {note}", style="dim")


def _parameter_count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.2f} million"


def _prediction_table(predictions: Sequence[Prediction]) -> Table:
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
    for prediction in predictions:
        peak, speed = prediction.memory, prediction.speed
        fits = f"{peak.verdict} by {memory(-peak.margin_gib)}" if peak.verdict == "does not fit" else peak.verdict
        row = [prediction.description, fits, memory(peak.total_gib), memory(peak.capacity_gib)]
        if speed is None:
            row += ["unknown GPU rates", "", "", ""]
        else:
            low, high = speed.low_tokens_per_s_per_gpu, speed.high_tokens_per_s_per_gpu
            row.append(f"{speed.tokens_per_s_per_gpu:,.0f} ({low:,.0f}–{high:,.0f})")
            row.append("" if speed.mfu is None else f"{speed.mfu:.0%}")
            row += [f"{speed.exposed_communication_fraction:.0%}", speed.bound_by]
        shown.add_row(*row, f"{prediction.longest_sequence:,}", f"{prediction.largest_micro_batch:,}")
    return shown


def _print_memory_terms(console: Console, prediction: Prediction) -> None:
    peak = prediction.memory
    # Terms below 1 % of the peak decide nothing, and would hide the others.
    shown = (term for term in peak.terms if term.gib >= 0.01 * peak.total_gib)
    terms = ", ".join(f"{term.name} {memory(term.gib)}" for term in shown)
    interval = f"{memory(peak.low_gib)} to {memory(peak.high_gib)}"
    console.print(f"\n{prediction.description} (peak at {peak.moment}; {interval})")
    console.print(f"  {terms}")
    if peak.host_gib_per_node:
        console.print(f"  host memory per node: {memory(peak.host_gib_per_node)}")
    if prediction.cheapest_change is not None:
        change = prediction.cheapest_change
        console.print(f"  should fit with: {change.description} ({memory(change.total_gib)})")
