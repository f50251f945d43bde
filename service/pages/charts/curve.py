"""Chart of projected speeds per GPU over the number of GPUs, with their 90 % bands."""

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.targets import CurvePoint, StudyProjection
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
from shardtune.service.pages.charts.scale import LogScale, Position, Scale, for_sizes, from_zero, tick_label, titled
from shardtune.service.wording.targets import projection_words

_SHAPES = ("circle", "square", "triangle", "diamond", "circle")
_MOST_LABELS = 8


def curve(projection: StudyProjection) -> Plot:
    """Return the chart of projected speed by number of GPUs, for the configuration that is best on the target cluster
    and for its runners-up."""
    configs = projection_words.ranked(projection)
    points = [point for config in configs for point in config.curve]
    across = for_sizes([float(point.gpus) for point in points], LEFT, WIDTH - RIGHT)
    up = from_zero([point.tokens_per_s_per_gpu.high for point in points], HEIGHT - BOTTOM, TOP)
    lines, marks = list[Line](), list[Mark]()
    for index, config in enumerate(configs):
        kind = f"kind-{index}"
        spots = [(across(point.gpus), up(point.tokens_per_s_per_gpu.expected)) for point in config.curve]
        lines.append(Line(polyline(spots), kind, f"{index + 1}."))
        for point in config.curve:
            lines.append(Line(_whisker(point, across, up), f"whisker {kind}"))
            marks.append(
                _mark(point, across, up, f"{kind}{' answer' if index == 0 else ''}", index, config.description)
            )
    counts = sorted({point.gpus for point in points})
    # Numbers between powers of two would run into their neighbours.
    labelled = sorted({point.gpus for point in points if point.nodes & (point.nodes - 1) == 0} | {counts[-1]})
    return Plot(
        name="projection",
        summary=f"Projected tokens per second and GPU of {counted(len(configs), 'configuration')} on {counts[0]} to {counts[-1]} GPUs.",
        x_label=titled("GPUs", across),
        y_label="tokens/s/GPU",
        x_ticks=_count_ticks(across, labelled),
        y_ticks=ticks(up, 5),
        lines=tuple(lines),
        marks=tuple(marks),
        note=f"The same work for each rank on every size. Whiskers: 90 % bands. {_origin(projection)}",
    )


def _origin(projection: StudyProjection) -> str:
    if projection.measured_gpu is None:
        return "The first point of each line was measured."
    return f"All points are projected to {projection.cluster.gpu} from runs on {projection.measured_gpu}."


def _whisker(point: CurvePoint, across: Position, up: Scale) -> str:
    values = point.tokens_per_s_per_gpu
    return polyline([(across(point.gpus), up(values.low)), (across(point.gpus), up(values.high))])


def _mark(point: CurvePoint, across: Position, up: Scale, kind: str, index: int, description: str) -> Mark:
    speed = projection_words.speed(point.tokens_per_s_per_gpu)
    title = f"{description} on {counted(point.gpus, 'GPU')}, {point.evidence}: {speed} tokens/s/GPU"
    at = across(point.gpus), up(point.tokens_per_s_per_gpu.expected)
    return Mark(*at, _SHAPES[index % len(_SHAPES)], kind, title, radius=5 if index == 0 else 4)


def _count_ticks(across: Position, counts: list[int]) -> tuple[AxisTick, ...]:
    shown = counts if len(counts) <= _MOST_LABELS and isinstance(across, LogScale) else []
    return tuple(AxisTick(across(count), tick_label(count, count)) for count in shown) or ticks(across, 5)
