"""Tables of published sweeps over tensor, pipeline and data parallel layouts: what `benchmarks.parallel` reads and predicts, to be searched.

The sweep's own program ran these layouts, no backend of ours; so a configuration is a row's knobs, and the prediction and the
memory gate are those of `benchmarks.parallel`.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.parallel import tables
from benchmarks.parallel.prediction import Predicted, predict
from benchmarks.search.measured import MeasuredTable, Run
from benchmarks.search.table_space import TableSpace
from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.trial import Rejection
from shardtune.service.cli.errors import InputError
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import PARTS, MemoryCalibration
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictedRows, PredictionBasis
from shardtune.tuner.search.space import Choice
from shardtune.tuner.search.space.legal_values import Flat
from shardtune.tuner.search.space.questions import Answer, Question

_HOST_GIB = 1000.0
"""Host memory of the cluster: nothing is offloaded."""
_CERTAIN_GIB = 1.0
"""Assumed spread of measurements, so far below any limit that a sampler does not doubt them."""


class LayoutConfig(TrialConfig):
    """A row in the place of a trial's configuration; its strategy says nothing."""

    knobs: tuple[tuple[str, KnobValue], ...]
    """Columns by the search's names, where it has them."""

    def describe(self) -> str:
        """The row in words."""
        return ", ".join(f"{knob} {value}" for knob, value in self.knobs)


class SweepSpace(TableSpace):
    """The rows, drawn knob by knob; a knob has the values that some row has."""

    def __init__(self, measured: Sequence[TrialConfig]) -> None:
        # No domains and no limits to begin from: the rows are all there is.
        self.measured = tuple(measured)
        self._keys = {}
        tables = [self.flatten(config) for config in measured]
        values = {knob: tuple(sorted({table[knob] for table in tables}, key=_order)) for knob in tables[0]}
        self._questions = [Question(knob, knob, results) for knob, results in values.items()]
        self._places = tables

    def flatten(self, config: TrialConfig) -> Flat:
        """The row's knobs."""
        assert isinstance(config, LayoutConfig)
        return dict(config.knobs)

    def unflatten(self, table: Flat) -> TrialConfig:
        """The row with these knobs."""
        return self.measured[self._places.index(table)]

    def choices_of(self, config: TrialConfig, exact: bool = False) -> list[Choice]:
        """A row's values of all knobs with a choice; every row has a place."""
        own = self.flatten(config)
        return [Choice(question, own[question.knob]) for question in self._questions if len(question.values) > 1]

    def canonical(self, config: TrialConfig) -> TrialConfig:
        """Every knob does something."""
        return config

    def _walk(self, answer: Answer) -> Flat:
        return {question.knob: answer(question) for question in self._questions}


@dataclass(frozen=True)
class Sweep(MeasuredTable):
    """One table of a sweep."""

    rows: dict[str, tables.Measured]
    """Rows by the content key of the configuration."""
    predictions: dict[str, Predicted]
    """Predictions of the rows, by the same keys."""

    @property
    def limit_gib(self) -> float:
        """GiB that count as a GPU's memory."""
        return self._first.training.memory_bytes / GIB

    @property
    def _first(self) -> tables.Measured:
        return next(iter(self.rows.values()))

    def pool(self) -> Pool:
        """Predictions of the product's predictor, as in `benchmarks.parallel`."""
        basis = PredictionBasis(self._first.training.shape, self.workload, self.cluster)
        return Pool(self.space, basis, self.space.measured, self._predicted)

    def _predicted(self, configs: Sequence[TrialConfig]) -> PredictedRows:
        predictions = [self.predictions[config.content_key()] for config in configs]
        # In one part: a calibration then moves all layouts alike, and what they differ in is left to the process.
        parts = np.zeros((len(predictions), len(PARTS)))
        parts[:, PARTS.index("step")] = [prediction.seconds for prediction in predictions]
        # What fits is the gate's to say, for every sampler alike: how exact these peaks are, nobody has measured. The guided one,
        # too, learns of failures only where it has seen some.
        small = np.full(len(predictions), _CERTAIN_GIB)
        return PredictedRows(parts, peak_gib=small, least_gib=small, host_gib=np.zeros(len(predictions)))

    def compared(self, history: Sequence[Observation]) -> list[ComparedRun]:
        """No correction: such runs say nothing about a machine of ours."""
        return []

    def memory(self, history: Sequence[Observation]) -> MemoryCalibration:
        """The prior: sweeps leave out peaks, or do not say of what."""
        return MemoryCalibration()

    def gate(self, config: TrialConfig, memory: MemoryCalibration) -> Rejection | None:
        """Training as in `benchmarks.parallel`."""
        need = self.predictions[config.content_key()].bytes_needed / GIB
        if need <= self.limit_gib:
            return None
        return Rejection(config=config, needed_gib=need, available_gib=self.limit_gib, reason=config.describe())


def read(path: Path) -> list[Sweep]:
    """The tables of a file in which something ran.

    Raises:
        InputError: no such file, one in neither format, or nothing in it that ran.
    """
    if not path.is_file():
        raise InputError(f"--sweep ({path}) does not exist; give a CSV with the columns of a published sweep")
    try:
        text = tables.read(path)
    except (tables.Misread, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"--sweep ({path}): {error}") from None
    created = [_table(name, rows) for name, rows in text.items() if any(row.seconds for row in rows)]
    if not created:
        raise InputError(f"--sweep ({path}): no row ran; give one with rows whose status is ok")
    return created


def _table(name: str, rows: Sequence[tables.Measured]) -> Sweep:
    training, layout = rows[0].training, rows[0].layout
    runs: dict[str, tuple[Run, ...]] = defaultdict(tuple)
    configs: dict[str, TrialConfig] = {}
    by_key = {}
    for row in rows:
        config = _config(row)
        key = config.content_key()
        configs[key], by_key[key] = config, row
        runs[key] += (Run(row.seconds, 0.0, None, "" if row.seconds else row.status, None),)
    world = layout.ranks
    node = math.gcd(world, training.network.gpus_per_node)
    cluster = Cluster(
        gpu=training.gpu,
        nodes=world // node,
        gpus_per_node=node,
        memory_gib=training.memory_bytes / GIB,
        host_memory_gib=_HOST_GIB,
    )
    workload = Workload(sequence_length=training.sequence, global_batch=training.global_batch)
    predictions = dict(zip(by_key, predict(list(by_key.values())), strict=True))
    return Sweep(name, workload, cluster, SweepSpace(list(configs.values())), dict(runs), by_key, predictions)


def _config(row: tables.Measured) -> LayoutConfig:
    layout = row.layout
    splits_positions = row.training.program.implementation.splits_positions
    words = (row.kernel, "sequence parallel" if splits_positions else "")
    knobs: Flat = {
        # What makes another program of it: peaks are compared within one.
        "backend": ", ".join(filter(None, words)),
        "stage": int(layout.zero),
        "tensor_parallel": layout.tp,
        "pipeline_parallel": layout.pp,
        "micro_batch": layout.micro_batch,
        "activation_checkpointing": "full" if layout.checkpointing else "none",
    }
    return LayoutConfig(strategy=DdpConfig(), micro_batch=layout.micro_batch, knobs=tuple(knobs.items()))


def _order(value: KnobValue) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (float(value), "")
