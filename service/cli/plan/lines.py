"""Print a plan as tables on a terminal."""

from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.trials.plans import Plan
from shardtune.service.cli.terminal import PrintableConsole
from shardtune.service.wording import plan_words

_WIDTH = 190
"""Width of the output in characters if stdout is not a terminal."""
_BEFORE_COST, _AFTER_COST = (
    ("GPUs", "source", "tokens/s/GPU", "days", "GPU-hours"),
    ("ends", "in time", "configuration"),
)


def show(plan: Plan) -> None:
    """Print a plan: its proposed choices, such as the cheapest one that ends by the deadline, a table of all rows, and
    the assumptions."""
    # Rich assumes 80 columns for a pipe, and would break each row over several lines.
    console = PrintableConsole(width=None if Console().is_terminal else _WIDTH, highlight=False)
    console.print(
        f"{plan.model}: {plan.parameters / 1e9:.2f} billion parameters, {plan.tokens:,.0f} tokens, sequence "
        f"{plan.sequence_length}, start {plan.start}"
    )
    console.print(f"{plan_words.evidence(plan)} Each figure is followed by its 90 % band.")
    _show_choices(console, plan)
    if plan.rows:
        console.print(_table(plan))
    for row in plan.impossible:
        console.print(f"{row.gpus} × {row.gpu}: {row.reason}")
    for note in plan.notes:
        console.print(f"note: {note}", style="dim")


def _show_choices(console: PrintableConsole, plan: Plan) -> None:
    for name, row, otherwise in plan_words.choices(plan):
        console.print(f"{name}: {otherwise if row is None else plan_words.summary(plan, row)}", style="bold")


def _table(plan: Plan) -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in (*_BEFORE_COST, plan_words.cost_heading(plan), *_AFTER_COST):
        shown.add_column(heading, justify="left" if heading in ("source", "configuration") else "right")
    for row in plan.rows:
        shown.add_row(
            f"{row.gpus} × {row.gpu}",
            plan_words.source(row),
            plan_words.band(row.tokens_per_s_per_gpu),
            plan_words.days(row),
            plan_words.band(row.gpu_hours),
            "no price" if row.cost is None else plan_words.band(row.cost),
            plan_words.finish(row),
            row.meets_deadline or "",
            row.description + (" (may not fit)" if row.may_not_fit else ""),
        )
    return shown
