"""Figures of a plan in words, for the command line and the page of plans."""

from collections.abc import Callable

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.formatting import listed
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.api_schemas.trials.plans import Plan


def band(values: Band, words: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Format a value with its 90 % band: `213,000 (135,584–334,619)`."""
    value, ends = value_and_band(values, words)
    return f"{value} ({ends})"


def value_and_band(values: Band, words: Callable[[float], str] = "{:,.0f}".format) -> tuple[str, str]:
    """Format a value and, as a second text, its 90 % band: `213,000` and `135,584–334,619`."""
    return words(values.expected), f"{words(values.low)}–{words(values.high)}"


def day_band(hours: Band) -> Band:
    """Convert hours to days."""
    return Band(expected=hours.expected / 24, low=hours.low / 24, high=hours.high / 24)


def days(row: PlanRow) -> str:
    """Format the number of days that a row of a plan takes, with its 90 % band: `53.3 (34.0–83.8)`."""
    return band(day_band(row.hours), "{:,.1f}".format)


def summary(plan: Plan, row: PlanRow) -> str:
    """Describe a plan's row on one line: GPUs, days, the day on which the run ends, and the cost."""
    cost = "" if row.cost is None else f", {money(plan, band(row.cost))}"
    return f"{row.gpus} × {row.gpu}, {source(row)}, {days(row)} days, ends {finish(row)}{cost}"


def money(plan: Plan, amount: str) -> str:
    """Add the plan's currency to an amount of money, if it is known: `217,330 USD`."""
    return amount if plan.currency is None else f"{amount} {plan.currency}"


def cost_heading(plan: Plan) -> str:
    """Return the heading of a column of costs: `cost`, or `cost (USD)` if the currency is known."""
    return "cost" if plan.currency is None else f"cost ({plan.currency})"


def finish(row: PlanRow) -> str:
    """Format the day on which a run ends, with its 90 % band: `2027-01-17 (2026-12-28 to 2027-02-16)`."""
    return f"{row.finish.expected} ({row.finish.earliest} to {row.finish.latest})"


def source(row: PlanRow) -> str:
    """Say where the speed of a row comes from: `measured (confirmed)`, `measured, not confirmed (undecided)`, `measured`,
    `projected` or `predicted`. Only what a study measured has a verdict."""
    if row.evidence != "measured" or row.verdict is None:
        return row.evidence
    if row.verdict == "confirmed":
        return "measured (confirmed)"
    return f"measured, not confirmed ({row.verdict.replace('_', ' ')})"


def evidence(plan: Plan) -> str:
    """Say which rows of a plan were measured, and by whom."""
    measured = [row.study_id for row in plan.rows if row.evidence == "measured"]
    if not measured:
        return "Nothing was measured at these sizes."
    named = [f"study {study_id}" for study_id in dict.fromkeys(measured) if study_id is not None]
    owners = [*named, *(["your measurements"] if None in measured else [])]
    return f"Rows marked measured are of {listed(owners)}; nothing else was measured at these sizes."


def choices(plan: Plan) -> list[tuple[str, PlanRow | None, str]]:
    """Return the choices that a plan proposes, such as the cheapest row. Each has its name, its row, and the text that
    is shown if no row qualifies."""
    in_time = f"cheapest that ends by {plan.deadline}" if plan.deadline is not None else "cheapest"
    missing = "no row is expected to" if plan.deadline is not None else "no row"
    rows: list[tuple[str, PlanRow | None, str]] = [(in_time, plan.cheapest_in_time, missing)]
    if plan.budget is not None:
        name = f"fastest within {money(plan, f'{plan.budget:,.0f}')}"
        rows.append((name, plan.fastest_in_budget, "no row is expected to cost so little"))
    return [*rows, *((_knee_name(plan, row), row, "") for row in plan.knees)]


def _knee_name(plan: Plan, knee: PlanRow) -> str:
    if any(row.gpu == knee.gpu and row.gpus > knee.gpus for row in plan.rows):
        return f"knee of {knee.gpu} (beyond it, GPU-hours grow by more than a tenth)"
    # More GPUs were not planned, so that nothing is known of them.
    return f"knee of {knee.gpu} (at the plan's largest number, or beyond)"
