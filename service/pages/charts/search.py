"""Charts of a search: the best so far over GPU-seconds spent, and speed against memory."""

from collections.abc import Sequence

from shardtune.db.queries.trial_points import TrialPoint
from shardtune.service.pages.charts.plot import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Area,
    Line,
    Mark,
    Plot,
    polyline,
    staircase,
    ticks,
)
from shardtune.service.pages.charts.scale import Scale, for_sizes, from_zero, memory_unit, titled
from shardtune.service.pages.figures import memory, rate
from shardtune.service.wording.backend_words import backend_mark, backend_name
from shardtune.tuner.insights import pareto

_MOST_MARKS = 400
"""Maximum number of points in a chart; more could not be distinguished and would make the page heavy."""


def limit_peak_gib(point: TrialPoint) -> float | None:
    """Return the peak memory in GiB that the memory limit applies to: reserved memory on a GPU, allocated memory on
    CPU ranks. None if it is not known."""
    return point.failure_peak_gib if point.measured_peak_gib is None else point.measured_peak_gib


def best_so_far(points: Sequence[TrialPoint], link: str) -> Plot | None:
    """Return the chart of each measured trial's speed, with a line of the best speed so far; None if no trial was
    measured."""
    spent, best = 0.0, 0.0
    measured: list[tuple[float, TrialPoint]] = []
    climbs: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: (p.finished_at is None, p.finished_at, p.number)):
        spent += point.gpu_seconds or 0.0
        if point.tokens_per_s_per_gpu is None or point.finished_at is None:
            continue
        measured.append((spent, point))
        if point.state == "complete" and point.tokens_per_s_per_gpu > best:
            best = point.tokens_per_s_per_gpu
            climbs.append((spent, best))
    if not measured:
        return None
    across = Scale(0, spent * 1.03 or 1, LEFT, WIDTH - RIGHT)
    up = from_zero([_speed(p) for _, p in measured], HEIGHT - BOTTOM, TOP)
    line = Line(staircase([(across(x), up(y)) for x, y in climbs], across(spent)), "best", "best so far")
    shown = measured[:: -(-len(measured) // _MOST_MARKS)]
    return Plot(
        name="best-so-far",
        summary=f"The best of {len(measured)} measured trials reached {rate(best)} tokens/s/GPU after {spent:,.0f} GPU-seconds.",
        x_label="GPU-seconds of search runs",
        y_label="tokens/s/GPU",
        x_ticks=ticks(across, 5),
        y_ticks=ticks(up, 5),
        lines=(line,),
        marks=tuple(_mark(across(x), up(_speed(p)), p, link) for x, p in shown),
        note=_omitted_note(len(shown), len(measured)),
    )


def speed_against_memory(points: Sequence[TrialPoint], limit_gib: float, link: str, best: int | None) -> Plot | None:
    """Return the chart of speed and memory of the measured trials, with the Pareto front of the feasible ones and the
    memory limit."""
    sized_points = [(m, p) for p in points if (m := limit_peak_gib(p)) is not None]
    units, unit = memory_unit([m for m, _ in sized_points] or [limit_gib])
    sized, limit = [(m * units, p) for m, p in sized_points], limit_gib * units
    measured = [(m, p) for m, p in sized if p.tokens_per_s_per_gpu is not None]
    stopped = [(m, p) for m, p in sized if p.tokens_per_s_per_gpu is None]
    if not measured:
        return None
    sizes = [m for m, _ in (*measured, *stopped)]
    # A limit far from all points would squeeze them into a corner.
    beyond = max(sizes) > limit * 0.3
    across = for_sizes([*sizes, limit] if beyond else sizes, LEFT, WIDTH - RIGHT)
    up = from_zero([_speed(p) for _, p in measured], HEIGHT - BOTTOM, TOP)
    front = pareto_front(measured)
    areas: tuple[Area, ...] = ()
    if limit < across.high:
        x = across(limit)
        areas = (Area(x, TOP, round(WIDTH - RIGHT - x, 1), HEIGHT - TOP - BOTTOM, "over", "over the limit"),)
    shown = measured[:: -(-len(measured) // _MOST_MARKS)]
    # Thinning out must not remove points of the front, which the line connects.
    shown += [entry for entry in front if entry not in shown]
    marks = [_mark(across(m), up(_speed(p)), p, link, is_best=p.number == best) for m, p in shown]
    # Failed trials have no speed: on the axis their memory shows how far beyond the limit they were.
    marks += [_mark(across(m), up(0.0), p, link) for m, p in stopped[:_MOST_MARKS]]
    return Plot(
        name="speed-memory",
        summary=f"{len(measured)} measured trials; {len(front)} of them are on the Pareto front of speed and memory.",
        x_label=titled(f"peak memory, {unit}", across),
        y_label="tokens/s/GPU",
        x_ticks=ticks(across, 5),
        y_ticks=ticks(up, 5),
        lines=(Line(polyline([(across(m), up(_speed(p))) for m, p in front]), "front", "Pareto front"),),
        marks=tuple(marks),
        areas=areas,
        note=" ".join(
            filter(
                None,
                (
                    "Outlined: the configuration at the top of this page, at the speed of its search run."
                    if best is not None
                    else "",
                    _omitted_note(len(shown), len(measured)),
                    "" if beyond else f"The limit of {memory(limit_gib)} lies far beyond the right edge.",
                ),
            )
        ),
    )


def pareto_front(measured: Sequence[tuple[float, TrialPoint]]) -> list[tuple[float, TrialPoint]]:
    """Return the feasible trials for which no other trial is both faster and smaller in memory, by ascending memory."""
    feasible = [entry for entry in measured if entry[1].state.is_feasible]
    return pareto.front(feasible, lambda entry: entry[0], lambda entry: _speed(entry[1]))


def _speed(point: TrialPoint) -> float:
    assert point.tokens_per_s_per_gpu is not None
    return point.tokens_per_s_per_gpu


def _mark(x: float, y: float, point: TrialPoint, link: str, is_best: bool = False) -> Mark:
    backend = str(point.config["strategy"]["kind"])
    feasible = point.state.is_feasible
    title = f"Trial {point.number}: {backend_name(backend)}, {rate(point.tokens_per_s_per_gpu)} tokens/s/GPU, {memory(limit_peak_gib(point))}"
    if point.state != "complete":
        title += f"; {point.failure_kind or point.state}"
    kind = f"s-{backend}" + (" answer" if is_best else "") if feasible else "infeasible"
    radius = 6 if is_best else 4
    return Mark(x, y, backend_mark(backend) if feasible else "cross", kind, title, f"{link}/{point.number}", radius)


def _omitted_note(shown: int, total: int) -> str:
    return f"{shown} of {total} trials are drawn." if shown < total else ""
