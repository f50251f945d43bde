"""What the predictor says about the trials of a study, beside what they measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from api_schemas.strategies import TrialConfig
from api_schemas.studies import Study
from api_schemas.trials import TrialState
from db.overview import TrialPoint
from service.pages.charts.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, Mark, Plot, polyline, ticks
from service.pages.charts.scale import for_sizes
from service.pages.charts.search import SHAPES
from service.pages.figures import gib
from tuner import model_shape
from tuner.footprint.candidates import from_configs
from tuner.predict import Evaluation, evaluate

_FEWEST = 3


@dataclass(frozen=True)
class Predicted:
    """Memory predicted and measured, and how well the predicted order of speeds held."""

    plot: Plot
    memory_error: float
    """Median of |predicted − measured| / measured."""
    trials: int


def predicted(
    study: Study, points: Sequence[TrialPoint], configs: Mapping[int, TrialConfig], link: str
) -> Predicted | None:
    """None for a model family or hardware the predictor does not know, and below three measured trials."""
    measured = [p for p in points if p.peak_allocated_gib and p.state == TrialState.COMPLETE]
    if len(measured) < _FEWEST:
        return None
    evaluation = _evaluate(study, [configs[p.number] for p in measured])
    if evaluation is None:
        return None
    allocated = [float(size) / (1 << 30) for size in evaluation.memory.allocated]
    pairs = [(p, p.peak_allocated_gib or 0.0, size) for p, size in zip(measured, allocated, strict=True)]
    error = median(abs(size - seen) / seen for _, seen, size in pairs)
    return Predicted(_plot(pairs, link), error, len(pairs))


def _evaluate(study: Study, configs: Sequence[TrialConfig]) -> Evaluation | None:
    workload, cluster = study.spec.workload, study.cluster
    try:
        shape = model_shape.from_config(study.spec.model.config, study.spec.model.name)
        candidates = from_configs(configs, workload.sequence_length, cluster.world_size, workload.global_batch)
        return evaluate(shape, candidates, workload, cluster)
    except ValueError:
        return None


def _plot(pairs: Sequence[tuple[TrialPoint, float, float]], link: str) -> Plot:
    sizes = [size for _, *both in pairs for size in both]
    across, up = for_sizes(sizes, LEFT, WIDTH - RIGHT), for_sizes(sizes, HEIGHT - BOTTOM, TOP)
    ends = [(across(size), up(size)) for size in (across.low, across.high)]
    marks = []
    for point, seen, size in pairs:
        backend = str(point.config["strategy"]["kind"])
        title = f"Trial {point.number}: predicted {gib(size)} GiB, measured {gib(seen)} GiB"
        shape = SHAPES.get(backend, "circle")
        marks.append(Mark(across(seen), up(size), shape, f"s-{backend}", title, f"{link}/{point.number}"))
    return Plot(
        name="predicted",
        summary=f"Predicted against measured peak memory of {len(pairs)} trials.",
        x_label="measured peak, GiB of tensors",
        y_label="predicted, GiB",
        x_ticks=ticks(across, 5),
        y_ticks=ticks(up, 5),
        lines=(Line(polyline(ends), "reference", "predicted = measured"),),
        marks=tuple(marks),
    )
