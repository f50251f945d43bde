"""Figures over all ranks, and over the ranks of each host, from their reports."""

import math
import statistics
from collections.abc import Iterable, Sequence

from shardtune.api_schemas.machines.conditions import NodeConditions
from shardtune.api_schemas.trials.measurements import Memory, NodeFigures, RankFigures
from shardtune.api_schemas.trials.rank_reports import RankReport

# 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom (any table of the distribution); beyond, the normal one
# is within 2 %.
_T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def of_rank(report: RankReport) -> RankFigures:
    """Figures of one rank."""
    step_times_s = report.own_step_times_s
    return RankFigures(
        rank=report.rank,
        step_time_s=statistics.median(step_times_s) if step_times_s else None,
        memory=report.memory or Memory(peak_allocated_gib=None),
    )


def of_host(node: NodeConditions, reports: Sequence[RankReport]) -> NodeFigures:
    """Figures of one host: step time of its slowest rank, and memory of the rank that used most."""
    of_ranks = [of_rank(report) for report in reports if node.has(report.rank)]
    times = [figures.step_time_s for figures in of_ranks if figures.step_time_s is not None]
    return NodeFigures(
        host=node.host,
        first_rank=node.first_rank,
        ranks=node.ranks,
        step_time_s=max(times, default=None),
        memory=largest(figures.memory for figures in of_ranks),
    )


def data_wait_fraction(reports: Sequence[RankReport], windows: Sequence[float]) -> float | None:
    """Time that the slowest rank waited for data, as a fraction of the timed steps; None if no rank measured it."""
    waits_s = [report.data_wait_s for report in reports if report.data_wait_s is not None]
    timed_s = statistics.fmean(windows) * reports[0].measured_steps
    return max(waits_s) / timed_s if waits_s and timed_s > 0 else None


def latest(moments: Iterable[float | None]) -> float | None:
    """Latest of the points in time that ranks reported; None if no rank reported one."""
    return max((moment for moment in moments if moment is not None), default=None)


def total(counts: Iterable[int | None]) -> int | None:
    """Sum of the values that are not None; None if all values are None."""
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if known_counts else None


def half_width(samples: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean, by Student's t, from at least two samples."""
    freedom = len(samples) - 1
    quantile = _T975[freedom - 1] if freedom <= len(_T975) else 1.96
    return quantile * statistics.stdev(samples) / math.sqrt(len(samples))


def largest(memories: Iterable[Memory]) -> Memory:
    """Maximum of memory figures over all ranks, for each field separately; None for a field that no rank measured."""
    dumps = [memory.model_dump() for memory in memories]
    return Memory.model_validate(
        {
            name: max((dump[name] for dump in dumps if dump[name] is not None), default=None)
            for name in Memory.model_fields
        }
    )
