"""Print a plan as tables on a terminal."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.trials.plans import Band, Plan, PlanRow
from shardtune.service.cli.terminal import PrintableConsole

_WIDTH = 190
"""Characters per line where stdout is not a terminal."""
_HEADINGS = ("GPUs", "evidence", "tokens/s/GPU", "days", "GPU-hours", "cost", "ends", "in time", "configuration")


def show(plan: Plan) -> None:
    """Print the choices, a table of all rows, and what was assumed."""
    # Rich assumes 80 columns for a pipe, and would break each row over several lines.
    console = PrintableConsole(width=None if Console().is_terminal else _WIDTH, highlight=False)
    console.print(
        f"{plan.model}: {plan.parameters / 1e9:.2f} billion parameters, {plan.tokens:,.0f} tokens, sequence "
        f"{plan.sequence_length}, start {plan.start}"
    )
    console.print("Nothing was measured at these sizes. Each figure is followed by its 90 % band.")
    _show_choices(console, plan)
    if plan.rows:
        console.print(_table(plan))
    for row in plan.impossible:
        console.print(f"{row.gpus} × {row.gpu}: {row.reason}")
    for note in plan.notes:
        console.print(f"note: {note}", style="dim")


def _show_choices(console: PrintableConsole, plan: Plan) -> None:
    def line(words: str, row: PlanRow | None, otherwise: str) -> None:
        console.print(f"{words}: {otherwise if row is None else _summary(row)}", style="bold")

    if plan.deadline is not None:
        line(f"cheapest that ends by {plan.deadline}", plan.cheapest_in_time, "no row is expected to")
    else:
        line("cheapest", plan.cheapest_in_time, "no row")
    if plan.budget is not None:
        line(f"fastest within {plan.budget:,.0f}", plan.fastest_in_budget, "no row is expected to cost so little")
    for row in plan.knees:
        line(f"knee of {row.gpu} (beyond it, GPU-hours grow by more than a tenth)", row, "")


def _summary(row: PlanRow) -> str:
    cost = "" if row.cost is None else f", {_band(row.cost)}"
    return (
        f"{row.gpus} × {row.gpu}, {_days(row)} days, ends {row.finish.expected} ({row.finish.earliest} to "
        f"{row.finish.latest}){cost}"
    )


def _table(plan: Plan) -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in _HEADINGS:
        shown.add_column(heading, justify="left" if heading in ("evidence", "configuration") else "right")
    for row in plan.rows:
        shown.add_row(
            f"{row.gpus} × {row.gpu}",
            row.evidence,
            _band(row.tokens_per_s_per_gpu),
            _days(row),
            _band(row.gpu_hours),
            "no price" if row.cost is None else _band(row.cost),
            f"{row.finish.expected} ({row.finish.earliest} to {row.finish.latest})",
            row.meets_deadline or "",
            row.description + (" (may not fit)" if row.may_not_fit else ""),
        )
    return shown


def _days(row: PlanRow) -> str:
    return _band(row.hours, lambda hours: f"{hours / 24:,.1f}")


def _band(band: Band, words: Callable[[float], str] = "{:,.0f}".format) -> str:
    return f"{words(band.expected)} ({words(band.low)}–{words(band.high)})"
