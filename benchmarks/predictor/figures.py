"""Figures over scored rows: which contradict each other, calibration, sources left out, errors and ranks."""

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.predictor.correlation import spearman
from benchmarks.predictor.rows import Case
from shardtune.api_schemas.base import GIB
from shardtune.tuner.prediction.calibration import fit_speed
from shardtune.tuner.prediction.candidates import ZERO

CALIBRATION_SHARE, SEED, MINIMUM_GROUP = 0.2, 20, 5
WORST_RATIO = 1.4


@dataclass
class Scored:
    """One row with its prediction."""

    case: Case
    parts: dict[str, float]
    predicted_s: float
    tokens_per_step: float
    predicted_gib: float | None
    fits: bool | None = None
    """Whether the memory that is certain to be held is below the GPU's; None where that is unknown."""
    calibrated_s: float | None = None
    contradicts: str | None = None

    @property
    def id(self) -> str:
        """The row's."""
        return self.case.row["id"]

    @property
    def group(self) -> tuple[str, str]:
        """Rows that are calibrated together."""
        return self.case.row["source"], self.case.gpu.name

    @property
    def measured_s(self) -> float | None:
        """Seconds of an optimizer step."""
        rate = self.case.row["tokens_per_s_per_gpu"]
        return self.tokens_per_step / float(rate) if rate else None

    @property
    def measured_gib(self) -> float | None:
        """Peak memory, of the row's kind."""
        value = self.case.row["peak_mem_gib"]
        return float(value) if value else None

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured, less 1."""
        if self.measured_gib is None or self.predicted_gib is None:
            return None
        return self.predicted_gib / self.measured_gib - 1

    @property
    def speed_error(self) -> float | None:
        """Relative error of tokens per second: predicted over measured, less 1."""
        return None if self.measured_s is None else self.measured_s / self.predicted_s - 1


_SAME = (
    "n_params_b", "n_layers", "hidden_size", "n_heads", "n_kv_heads", "ffn_hidden", "vocab", "seq_len", "n_gpus",
    "backend", "shard_size", "replicate_size", "micro_batch", "act_ckpt", "compile", "precision", "offload", "mem_kind",
)  # fmt: skip


def mark_contradictions(rows: Sequence[Scored]) -> list[list[str]]:
    """Pairs with equal columns whose measured memory differs by more than 25 %, and rows below their own states.

    No model of these columns can be near both. A fully sharded row cannot hold less than its shards.
    """
    pairs: list[list[str]] = []
    groups: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.measured_gib is not None:
            key = (*(row.case.row[name] for name in _SAME), row.case.gpu.name, str(row.case.implementation))
            groups[key].append(row)
    for group in groups.values():
        low = min(group, key=lambda row: row.measured_gib or 0.0)
        high = max(group, key=lambda row: row.measured_gib or 0.0)
        if (high.measured_gib or 0) > 1.25 * (low.measured_gib or 0):
            middle = ((high.measured_gib or 0) * (low.measured_gib or 0)) ** 0.5
            for row in group:
                near, far = (low, high) if (row.measured_gib or 0) < middle else (high, low)
                row.contradicts = f"{far.id} ({far.measured_gib} GiB against {near.measured_gib})"
            pairs.append([high.id, low.id])
    for row in rows:
        case = row.case
        if row.measured_gib is None or row.contradicts or case.candidate["offload_optimizer"]:
            continue
        masters = (
            case.dtypes.compute if case.candidate["backend"] == ZERO and case.dtypes.compute < case.dtypes.master else 0
        )
        per_parameter = case.dtypes.master + masters + case.implementation.trainable * case.dtypes.moments
        shards = per_parameter * case.shape.parameters / case.candidate["shard"] / GIB
        if row.measured_gib < 0.95 * shards:
            row.contradicts = f"arithmetic: sharded states alone take {shards:.1f} GiB"
            pairs.append([row.id, "arithmetic"])
    return pairs


def slower_with_larger_batches(rows: Sequence[Scored]) -> list[list[str]]:
    """Pairs of one job in which the larger micro batch, with as many fewer passes, is more than 1.4 times slower.

    The arithmetic is the same, and each pass launches and sends the same: something else slowed the second. No model of
    the columns can be near both.
    """
    jobs: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.measured_s is not None and row.tokens_per_step:
            same = (*(row.case.row[name] for name in _SAME if name != "micro_batch"), str(row.tokens_per_step))
            jobs[(*row.group, row.case.row["model_name"], *same, str(row.case.implementation))].append(row)
    return [
        [large.id, small.id]
        for job in jobs.values()
        for small in job
        for large in job
        if large.case.candidate["micro_batch"] > small.case.candidate["micro_batch"]
        and (large.measured_s or 0.0) > WORST_RATIO * (small.measured_s or 0.0)
    ]


def ratios(rows: Sequence[Scored], slowed: Collection[str]) -> dict[str, float | None]:
    """Ratio by which the worst prediction of speed is off either way, also without rows that contradict another, and
    the rank
    correlation over all rows at once."""
    off = {row.id: abs(np.log1p(row.speed_error)) for row in rows if row.speed_error is not None}
    kept = [error for name, error in off.items() if name not in slowed]
    return {
        "throughput_worst_ratio": _round(float(np.exp(max(off.values())))) if off else None,
        "throughput_worst_ratio_uncontradicted": _round(float(np.exp(max(kept)))) if kept else None,
        "throughput_spearman": _round(_spearman([row for row in rows if row.measured_s is not None])) if off else None,
        "throughput_spearman_uncontradicted": _round(
            _spearman([row for row in rows if row.measured_s is not None and row.id not in slowed])
        )
        if kept
        else None,
    }


def limits(ran: Sequence[Scored], crashed: Sequence[Scored]) -> dict[str, int]:
    """Number of jobs that did not run and are predicted above their GPU's memory, and of jobs that ran and are
    predicted below it."""
    recorded, fallen = ([row for row in rows if row.fits is not None] for rows in (ran, crashed))
    return {
        "crashed": len(fallen),
        "crashed_above": sum(not row.fits for row in fallen),
        "ran": len(recorded),
        "ran_below": sum(bool(row.fits) for row in recorded),
    }


def calibrate(rows: Sequence[Scored]) -> None:
    """Fit each source and GPU with enough rows on a fifth of them; score the rest."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.measured_s is not None:
            groups[row.group].append(row)
    for key in sorted(groups):
        group = sorted(groups[key], key=lambda row: row.id)
        if len(group) < MINIMUM_GROUP:
            continue
        random.Random(SEED).shuffle(group)
        count = max(1, round(CALIBRATION_SHARE * len(group)))
        fitted = fit_speed([row.parts for row in group[:count]], [row.measured_s or 0.0 for row in group[:count]])
        for row in group[count:]:
            row.calibrated_s = float(fitted.seconds({k: np.array([v]) for k, v in row.parts.items()})[0])


def leave_one_source_out(rows: Sequence[Scored]) -> dict[str, Any]:
    """Each source predicted with factors fitted on the other sources' rows of the same GPU architecture."""
    timed = [row for row in rows if row.measured_s is not None]
    errors: dict[str, list[float]] = {}
    for source in sorted({row.case.row["source"] for row in timed}):
        errors[source] = []
        for architecture in sorted({row.case.gpu.architecture for row in timed}):
            here = [r for r in timed if r.case.row["source"] == source and r.case.gpu.architecture == architecture]
            others = [r for r in timed if r.case.row["source"] != source and r.case.gpu.architecture == architecture]
            if not here or not others:
                errors[source] += [abs(row.speed_error or 0.0) for row in here]
                continue
            fitted = fit_speed([r.parts for r in others], [r.measured_s or 0.0 for r in others])
            for row in here:
                seconds = float(fitted.seconds({k: np.array([v]) for k, v in row.parts.items()})[0])
                errors[source].append(abs((row.measured_s or 0.0) / seconds - 1))
    everything = [error for values in errors.values() for error in values]
    return {
        "throughput_median_ape": _round(_median(everything)),
        "throughput_median_of_sources": _round(_median([_median(v) or 0.0 for v in errors.values() if v])),
        "by_source": {s: {"rows": len(v), "throughput_median_ape": _round(_median(v))} for s, v in errors.items()},
    }


def _median(values: Iterable[float]) -> float | None:
    listed = list(values)
    return float(np.median(listed)) if listed else None


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _share(values: Sequence[float], test: Callable[[float], bool]) -> float | None:
    return _round(sum(map(test, values)) / len(values)) if values else None


def rank_correlation(rows: Sequence[Scored]) -> float | None:
    """Mean Spearman of predicted and measured speed over groups of equal source, GPU, count and model."""
    groups: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for row in rows:
        if row.measured_s is not None:
            groups[(*row.group, row.case.row["n_gpus"], row.case.row["model_name"])].append(row)
    scores = [_spearman(group) for group in groups.values() if len(group) >= MINIMUM_GROUP]
    recorded = [score for score in scores if score is not None]
    return _round(sum(recorded) / len(recorded)) if recorded else None


def _spearman(group: Sequence[Scored]) -> float | None:
    return spearman(
        [row.tokens_per_step / row.predicted_s for row in group],
        [row.tokens_per_step / (row.measured_s or 1.0) for row in group],
    )


def summary(rows: Sequence[Scored]) -> dict[str, Any]:
    """The figures of one set of rows."""
    memory = [row.memory_error for row in rows if row.memory_error is not None and row.contradicts is None]
    speed = [abs(row.speed_error) for row in rows if row.speed_error is not None]
    calibrated = [
        abs((row.measured_s or 0.0) / row.calibrated_s - 1) for row in rows if row.calibrated_s and row.measured_s
    ]
    return {
        "rows": len(rows),
        "memory_rows": len(memory),
        "throughput_rows": len(speed),
        "memory_median_ape": _round(_median(map(abs, memory))),
        "memory_within_20pct": _share(memory, lambda error: abs(error) <= 0.2),
        "memory_under_by_10pct": _share(memory, lambda error: error < -0.1),
        "throughput_median_ape": _round(_median(speed)),
        "throughput_median_ape_calibrated": _round(_median(calibrated)),
        "rank_correlation": rank_correlation(rows),
    }
