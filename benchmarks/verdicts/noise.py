"""Recorded noise between repeats of real trials, drawn again in blocks, and a machine that makes runs under it.

Deviations are those of real runs from what is usual for their configuration in their record: the median of the runs that the
product's rule lets count, or of all where it lets none. They are drawn in blocks of runs that followed each other (circular block bootstrap, Politis & Romano 1992), so that bursts and drift stay together across the arms.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from benchmarks.repeats import CLUSTER, Repeat
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.tuner.verdict import disturbance
from shardtune.tuner.verdict.run_load import RunLoad

BLOCK = 10
"""Runs drawn together: about a minute of the recorded machine."""
CORES = 2
"""Cores of the machine under the records."""


class Draw(NamedTuple):
    """One run's noise."""

    deviation: float
    """Logarithm of its speed over the configuration's usual one."""
    is_disturbed: bool = False
    """Whether the product's rule discards the run, by its recorded circumstances."""
    cores_left: float | None = None
    """Cores that other programs left for its ranks; None where the record has none."""
    spread: float | None = None
    """Relative half-width of the run's own interval; None where the record has none."""


class MeasuredRun(NamedTuple):
    """One run that counts."""

    speed: float
    load: RunLoad


Noise = Iterator[Draw]
Record = Sequence[Draw]


def of_records(rows: Sequence[Repeat]) -> list[list[Draw]]:
    """The noise of each record's runs, in the order they ran."""
    records: dict[str, list[Repeat]] = {}
    for row in rows:
        records.setdefault(row.record, []).append(row)
    return [_of_record(sorted(record, key=lambda row: row.position)) for record in records.values()]


def _of_record(rows: Sequence[Repeat]) -> list[Draw]:
    is_disturbed = [why_disturbed(row) is not None for row in rows]
    usual = {row.configuration: _usual(row.configuration, rows, is_disturbed) for row in rows}
    return [
        Draw(math.log(row.tokens_per_s_per_gpu) - usual[row.configuration], is_out, _cores_left(row), row.half_width)
        for row, is_out in zip(rows, is_disturbed, strict=True)
    ]


def _cores_left(row: Repeat) -> float | None:
    foreign = row.foreign_cpu_cores
    return None if foreign is None else disturbance.cores_left(foreign, CLUSTER, CORES)


def _usual(configuration: str, rows: Sequence[Repeat], is_disturbed: Sequence[bool]) -> float:
    own = [
        (math.log(row.tokens_per_s_per_gpu), is_out)
        for row, is_out in zip(rows, is_disturbed, strict=True)
        if row.configuration == configuration
    ]
    return median([speed for speed, is_out in own if not is_out] or [speed for speed, _ in own])


def as_if_seen(rows: Sequence[Repeat]) -> list[Repeat]:
    """Rows of a record from before other programs' cores were written down, with as many as explain how slow each run was.

    Ranks that ran at a share of their usual speed on all cores had the rest of the cores taken: an assumption, which the
    record `shared` bears out as far as it goes (docs/measurements/verdicts.md).
    """
    speeds: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        speeds.setdefault((row.record, row.configuration), []).append(row.tokens_per_s_per_gpu)
    usual = {name: median(values) for name, values in speeds.items()}
    return [
        replace(
            row, foreign_cpu_cores=CORES * max(0.0, 1 - row.tokens_per_s_per_gpu / usual[row.record, row.configuration])
        )
        for row in rows
    ]


def why_disturbed(row: Repeat) -> str | None:
    """Measurement that the service would receive of the run."""
    measured = Measurement.model_construct(  # type: ignore[call-arg]  # only what the rule reads
        step_time_s=1.0,
        step_time_half_width_s=row.half_width,
        conditions=Conditions(foreign_cpu_cores=row.foreign_cpu_cores),
    )
    return disturbance.reason(measured, CLUSTER, lambda: CORES)


def resampled(records: Sequence[Record], draw: random.Random) -> Noise:
    """An endless run of noise in blocks; a longer record is drawn from as much more often."""
    weights = [len(record) for record in records]
    while True:
        (record,) = draw.choices(records, weights)
        begin = draw.randrange(len(record))
        yield from (record[(begin + i) % len(record)] for i in range(BLOCK))


class Machine:
    """Makes the runs of one study, and repeats the disturbed ones as the service does."""

    def __init__(self, noise: Noise, repeat_disturbed: float) -> None:
        """`repeat_disturbed`: as in a study's budget."""
        self.counted = self.repeats = self._discarded_in_a_row = 0
        self._noise, self._share = noise, repeat_disturbed

    def run(self, log_speed: float) -> MeasuredRun:
        """The run that counts, of an arm with this true speed."""
        of_run = 0
        while True:
            drawn = next(self._noise)
            may = disturbance.may_repeat(self._share, of_run, self.repeats, self.counted, self._discarded_in_a_row)
            if not (drawn.is_disturbed and may):
                self.counted += 1
                self._discarded_in_a_row *= drawn.is_disturbed
                load = RunLoad(drawn.is_disturbed, drawn.cores_left, drawn.spread)
                return MeasuredRun(math.exp(log_speed + drawn.deviation), load)
            of_run, self.repeats = of_run + 1, self.repeats + 1
            self._discarded_in_a_row += 1
