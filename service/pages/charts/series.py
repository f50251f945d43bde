"""Charts of one trial: its loss against the reference trajectory, and its step times."""

from collections.abc import Sequence

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
    ticks,
)
from shardtune.service.pages.charts.scale import Scale, from_zero, spanning


def losses(own: Sequence[float], reference: Sequence[float], reference_name: str, recorded: int) -> Plot | None:
    """Return the chart of a trial's losses, with their largest difference from the losses of the reference trial in
    the first `recorded` steps. None if there are fewer than two steps."""
    if len(own) < 2:
        return None
    beside = list(reference[: len(own)])
    across = Scale(0, len(own) - 1, LEFT, WIDTH - RIGHT)
    up = spanning([*own, *beside], HEIGHT - BOTTOM, TOP)
    lines = [Line(_loss_line(own, across, up), "own", "this trial")]
    if len(beside) > 1:
        # On top and dotted: where both agree, either would hide the other.
        lines.append(Line(_loss_line(beside, across, up), "reference", reference_name))
    return Plot(
        name="loss",
        summary=f"Loss over {len(own)} steps, from {own[0]:.4f} to {own[-1]:.4f}.",
        x_label="step",
        y_label="loss",
        x_ticks=ticks(across, 6),
        y_ticks=ticks(up, 5),
        lines=tuple(lines),
        note=_agreement_note(own[:recorded], beside[:recorded]),
    )


def step_times(early: Sequence[float], windows: Sequence[float], window_steps: int) -> Plot | None:
    """Return the chart of step times, with the warm-up steps shaded; None if no step was timed."""
    if not windows:
        return None
    placed = [(index + 1.0, seconds) for index, seconds in enumerate(early)]
    placed += [(len(early) + (index + 0.5) * window_steps + 0.5, seconds) for index, seconds in enumerate(windows)]
    steps = len(early) + len(windows) * window_steps
    across = Scale(0.5, steps + 0.5, LEFT, WIDTH - RIGHT)
    # By the windows, not the warm-up: its first step may take seconds where the others take milliseconds.
    unit, name = (1000.0, "ms") if max(windows) < 1 else (1.0, "s")
    up = from_zero([seconds * unit for _, seconds in placed], HEIGHT - BOTTOM, TOP)
    end = across(len(early) + 0.5)
    areas = (Area(LEFT, TOP, round(end - LEFT, 1), HEIGHT - TOP - BOTTOM, "warm-up", "warm-up"),) if early else ()
    timed = placed[len(early) :]
    return Plot(
        name="step-times",
        summary=f"{len(windows)} timed windows of {window_steps} steps after {len(early)} steps of warm-up.",
        x_label="step",
        y_label=f"{name} per step",
        x_ticks=ticks(across, 6),
        y_ticks=ticks(up, 5),
        lines=(
            Line(polyline([(across(x), up(y * unit)) for x, y in placed[: len(early)]]), "early"),
            Line(polyline([(across(x), up(y * unit)) for x, y in timed]), "own"),
        ),
        marks=tuple(
            Mark(
                across(x),
                up(y * unit),
                "circle",
                "early" if i < len(early) else "own",
                f"step {x:g}: {y * unit:.3g} {name}",
                radius=3,
            )
            for i, (x, y) in enumerate(placed)
        ),
        areas=areas,
    )


def _agreement_note(own: Sequence[float], reference: Sequence[float]) -> str:
    if not reference:
        return ""
    worst = max(abs(a - b) / abs(b) if b else 0.0 for a, b in zip(own, reference, strict=False))
    return (
        f"Over the first {len(reference)} steps the loss differs from the reference by a relative {worst:.1g} at most."
    )


def _loss_line(values: Sequence[float], across: Scale, up: Scale) -> str:
    return polyline([(across(step), up(value)) for step, value in enumerate(values)])
