"""Print predictions as tables on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.formatting import memory, rate
from shardtune.api_schemas.training.float8 import title as float8_title
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardtune.api_schemas.trials.predictions import MemoryPrediction, Prediction, PredictionTable
from shardtune.service.cli.terminal import PrintableConsole

_LEAST_OTHER_GIB = 0.005
"""Minimum sum of the small memory terms, in GiB, that is printed as `other`; a smaller sum would print as 0."""
_WIDTH = 150
"""Width of the output in characters if stdout is not a terminal."""


def show(table: PredictionTable) -> None:
    """Print a table of predictions and, for each strategy, the terms of its memory."""
    # Rich assumes 80 columns for a pipe, and would break each row over several lines.
    console = PrintableConsole(width=None if Console().is_terminal else _WIDTH, highlight=False)
    cluster = table.cluster
    # AdamW is what everybody expects.
    trained_with = "" if table.optimizer == DEFAULT_OPTIMIZER else f"{OPTIMIZERS[table.optimizer].title}, "
    if table.float8 is not None:
        trained_with = f"{float8_title(table.float8)}, {trained_with}"
    if table.adapter is not None and table.trained_parameters is not None:
        trained_with = f"{table.adapter} ({_parameter_count(table.trained_parameters)} trained), {trained_with}"
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
            f"\nFastest configurations at a global batch of {table.global_batch:,} {table.batch_counts} (fitting ones first, then uncertain ones):",
            style="bold",
        )
        console.print(_prediction_table(table.fastest))
        console.print(
            f"rank: configurations of one rank are equal within ± {table.equal_within:.1%}, the error of such a comparison; "
            "the simplest comes first."
        )
    elif table.global_batch is not None:
        reason = (
            "fits"
            if any(prediction.speed for prediction in table.predictions)
            else "can be ranked: the GPU's rates are unknown"
        )
        console.print(
            f"\nNo configuration {reason} at a global batch of {table.global_batch:,} {table.batch_counts}.",
            style="bold",
        )
    for lever in table.levers:
        console.print(f"what would fit: {lever}")
    console.print(f"\n{_strategies_heading(table)}", style="bold")
    console.print(_prediction_table(table.predictions))
    for prediction in (*table.fastest[:1], *table.predictions):
        _print_memory_terms(console, prediction)
    for note in table.notes:
        console.print(f"note: {note}", style="dim")


def _strategies_heading(table: PredictionTable) -> str:
    if table.strategies_global_batch is None:
        return "The requested configurations, whether they fit or not:"
    program = ", compiled" if table.strategies_compiled else ", not compiled"
    batch = f"at a global batch of {table.strategies_global_batch:,} {table.batch_counts}"
    return f"One configuration of each strategy {batch}{program}, whether it fits or not:"


def _parameter_count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.2f} million"


def _prediction_table(predictions: Sequence[Prediction]) -> Table:
    shown = Table(box=None, pad_edge=False)
    is_ranked = any(prediction.rank is not None for prediction in predictions)
    if is_ranked:
        shown.add_column("rank", justify="right")
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
        row = [str(prediction.rank)] if is_ranked else []
        row += [prediction.description, fits, memory(peak.total_gib), memory(peak.capacity_gib)]
        if speed is None:
            row += ["unknown GPU rates", "", "", ""]
        else:
            low, high = speed.low_tokens_per_s_per_gpu, speed.high_tokens_per_s_per_gpu
            row.append(f"{rate(speed.tokens_per_s_per_gpu)} ({rate(low)}–{rate(high)})")
            row.append("" if speed.mfu is None else f"{speed.mfu:.0%}")
            row += [f"{speed.exposed_communication_fraction:.0%}", speed.bound_by]
        shown.add_row(*row, f"{prediction.longest_sequence:,}", f"{prediction.largest_micro_batch:,}")
    return shown


def memory_terms(peak: MemoryPrediction) -> list[tuple[str, float]]:
    """Return the memory terms to print, as pairs of name and GiB; they sum to the predicted peak."""
    # Terms below 1 % of the peak decide nothing, and would hide the others; their sum keeps the row's own sum right.
    shown = [(term.name, term.gib) for term in peak.terms if term.gib >= 0.01 * peak.total_gib]
    other = peak.total_gib - sum(gib for _, gib in shown)
    return shown + ([("other", other)] if abs(other) >= _LEAST_OTHER_GIB else [])


def _print_memory_terms(console: Console, prediction: Prediction) -> None:
    peak = prediction.memory
    terms = ", ".join(f"{name} {memory(gib, peak.high_gib)}" for name, gib in memory_terms(peak))
    interval = f"{memory(peak.low_gib, peak.high_gib)} to {memory(peak.high_gib, peak.low_gib)}"
    console.print(f"\n{prediction.description} (peak at {peak.moment}; {interval})")
    console.print(f"  {terms}")
    if peak.host_gib_per_node:
        console.print(f"  host memory per node: {memory(peak.host_gib_per_node)}")
    if prediction.cheapest_change is not None:
        change = prediction.cheapest_change
        console.print(f"  should fit with: {change.description} ({memory(change.total_gib)})")
