"""Charts of a plan: days by number of GPUs, and money (or GPU-hours) against days, each with its 90 % bands."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.api_schemas.trials.plans import Plan
from shardtune.service.pages.charts.plot import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    AxisTick,
    Line,
    Mark,
    Plot,
    polyline,
    ticks,
)
from shardtune.service.pages.charts.scale import LogScale, Position, for_sizes, tick_label, titled
from shardtune.service.wording.plan_words import band, day_band, days, money, source

_SHAPES = ("circle", "square", "triangle", "diamond")
_MOST_KINDS = 6
"""Number of kinds of GPUs with different colours; further kinds repeat the colours with other shapes."""
_SHADES = " Full colour: measured. Lighter: projected. Lightest: predicted."


def plots(plan: Plan, chosen: Sequence[PlanRow]) -> tuple[Plot, ...]:
    """Return the charts of a plan (a forecast of time and cost by kind and number of GPUs); empty for a plan without
    rows. `chosen`: rows to emphasise."""
    if not plan.rows:
        return ()
    counts = [float(row.gpus) for row in plan.rows]
    all_days = [end for row in plan.rows for end in _ends(day_band(row.hours))]
    amounts = [end for row in plan.rows if (spent := _money(plan, row)) is not None for end in _ends(spent)]
    across_counts = for_sizes(counts, LEFT, WIDTH - RIGHT)
    up_days = for_sizes(all_days, HEIGHT - BOTTOM, TOP)
    by_count = _plot(
        "plan-days", plan, chosen, across_counts, up_days, lambda row: (float(row.gpus), day_band(row.hours))
    )
    is_mixed = _is_mixed(plan)
    unit = (plan.currency or "money") if plan_has_prices(plan) else "GPU-hours"
    shown = [
        _finish(by_count, "GPUs", "days", across_counts, up_days, _count_ticks(across_counts, plan), is_mixed=is_mixed)
    ]
    if amounts:
        across_days, up_money = for_sizes(all_days, LEFT, WIDTH - RIGHT), for_sizes(amounts, HEIGHT - BOTTOM, TOP)
        by_days = _plot(
            "plan-money",
            plan,
            chosen,
            across_days,
            up_money,
            lambda row: _place_by_days(plan, row),
        )
        shown.append(_finish(by_days, "days", unit, across_days, up_money, ticks(across_days, 5), is_mixed=is_mixed))
    return tuple(shown)


def _place_by_days(plan: Plan, row: PlanRow) -> tuple[float, Band] | None:
    spent = _money(plan, row)
    return None if spent is None else (row.hours.expected / 24, spent)


def plan_has_prices(plan: Plan) -> bool:
    """Whether at least one row of a plan has a cost. Otherwise, the plan compares its rows by GPU-hours."""
    return any(row.cost is not None for row in plan.rows)


def _money(plan: Plan, row: PlanRow) -> Band | None:
    return row.cost if plan_has_prices(plan) else row.gpu_hours


def _ends(values: Band) -> tuple[float, float]:
    return values.low, values.high


def _plot(
    name: str,
    plan: Plan,
    chosen: Sequence[PlanRow],
    across: Position,
    up: Position,
    place: Callable[[PlanRow], tuple[float, Band] | None],
) -> Plot:
    lines, marks, is_mixed = list[Line](), list[Mark](), _is_mixed(plan)
    kinds: defaultdict[str, list[PlanRow]] = defaultdict(list)
    for row in plan.rows:
        kinds[row.gpu].append(row)
    for index, (kind, rows) in enumerate(kinds.items()):
        css, shape = f"kind-{index % _MOST_KINDS}", _SHAPES[index % len(_SHAPES)]
        placed = [(row, *spot) for row in rows if (spot := place(row)) is not None]
        points = [(across(x), up(values.expected)) for _, x, values in placed]
        lines.append(Line(polyline(points), css, kind))
        for row, x, values in placed:
            ends = [(across(x), up(values.low)), (across(x), up(values.high))]
            lines.append(Line(polyline(ends), f"whisker {css}"))
            is_chosen = row in chosen
            mark = f"{css} answer" if is_chosen else css
            mark += f" shade-{row.evidence}" if is_mixed else ""
            marks.append(
                Mark(across(x), up(values.expected), shape, mark, _title(plan, row), radius=6 if is_chosen else 4)
            )
    return Plot(name, "", "", "", (), (), lines=tuple(lines), marks=tuple(marks))


def _is_mixed(plan: Plan) -> bool:
    """Whether some rows of a plan are not predicted, so that its marks must tell them apart."""
    return any(row.evidence != "predicted" for row in plan.rows)


def _finish(
    plot: Plot,
    x_label: str,
    y_label: str,
    across: Position,
    up: Position,
    x_ticks: tuple[AxisTick, ...],
    *,
    is_mixed: bool,
) -> Plot:
    return Plot(
        name=plot.name,
        summary=f"{y_label[:1].upper()}{y_label[1:]} over {x_label} for {len(plot.marks)} kinds and numbers of GPUs.",
        x_label=titled(x_label, across),
        y_label=titled(y_label, up),
        x_ticks=x_ticks,
        y_ticks=ticks(up, 5),
        lines=plot.lines,
        marks=plot.marks,
        note="Whiskers: 90 % bands. Large marks: the choices above." + (_SHADES if is_mixed else ""),
    )


def _count_ticks(across: Position, plan: Plan) -> tuple[AxisTick, ...]:
    """Return the ticks of an axis of GPU counts. They are the counts of the plan or, if their labels would overlap,
    round numbers."""
    counts = sorted({row.gpus for row in plan.rows})
    if len(counts) > 8 or not isinstance(across, LogScale):
        return ticks(across, 5)
    return tuple(AxisTick(across(float(count)), tick_label(float(count), float(count))) for count in counts)


def _title(plan: Plan, row: PlanRow) -> str:
    cost = "" if row.cost is None else f", {money(plan, band(row.cost))}"
    return f"{row.gpus} × {row.gpu}, {source(row)}: {days(row)} days{cost}"
