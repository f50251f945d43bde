"""Pool of one study's candidate configurations with their predictions, computed once because they depend on the study
alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice

import numpy as np

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.prediction.calibration import PARTS
from shardtune.tuner.search.guided_sampler.axes import Axes, axes_of
from shardtune.tuner.search.guided_sampler.encoding import Array, KnobEncoder, Rows
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictedRows, PredictionBasis, predict_rows
from shardtune.tuner.search.space import Space
from shardtune.tuner.search.space.backends.registry import KNOBS
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.legal_values import Flat

ENUMERATED = 20_000
"""Maximum size of a search space whose configurations are all in the pool of candidates; of a larger space, the pool
contains a sample."""
DRAWN = 2_500
"""Number of configurations that the pool draws from a search space too large to enumerate."""
_CHUNK = 4_000
_CORNERS = 200
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101)


_Table = tuple[tuple[str, ...], tuple[KnobValue, ...]]
"""Names of a configuration's knobs, and their values."""


class Pool:
    """Pool of a study's candidate configurations, one per row. Rows are added for configurations that a caller names;
    existing rows never change."""

    def __init__(
        self,
        space: Space,
        basis: PredictionBasis,
        configs: Iterable[TrialConfig] | None = None,
        predict: Callable[[Sequence[TrialConfig]], PredictedRows] | None = None,
    ) -> None:
        """Predict the pool's candidate configurations. `predict` replaces the predictor."""
        self.space, self.basis = space, basis
        self._predict = predict or partial(predict_rows, basis)
        self._depends_on_host = predict is None and basis.cluster.device == "cuda"
        self._host_parts: dict[float, Array] = {}
        self._rows: dict[_Table, int] = {}
        self._keys: dict[str, int] = {}
        self._without_key: dict[int, TrialConfig] = {}
        self._near: dict[int, list[int]] = {}
        self._axes: list[Axes] = []
        self.backends: list[str] = []
        self._tables: list[_Table] = []
        self.is_complete = configs is not None or space.size(ENUMERATED + 1) <= ENUMERATED
        if configs is None:
            configs = space.enumerate() if self.is_complete else _initial_candidates(space)
        first = list(configs)
        # Codes in the order of appearance, so that adding rows never changes those of earlier rows.
        self.kinds, self._kinds = np.zeros(0, dtype=np.intp), dict[tuple[KnobValue | None, ...], int]()
        # Kept uncalibrated: a new calibration is then one matrix product, without new predictions.
        self.parts = np.zeros((0, len(PARTS)))
        self.peak_gib, self.least_gib, self.host_gib = np.zeros(0), np.zeros(0), np.zeros(0)
        self.compiled = np.zeros(0)
        for start in range(0, len(first), _CHUNK):
            chunk = first[start : start + _CHUNK]
            self._add(chunk, [space.flatten(config) for config in chunk])
        self.candidate_count = len(self._tables)
        """Number of leading rows of the pool that are candidates; later rows were added because callers named their
        configurations."""
        # A search by predictions alone never compares configurations: encoding them would take a fifth of its time.
        self._families, self._family_codes = np.zeros(0, dtype=np.intp), dict[tuple[tuple[str, str], ...], int]()
        self._encoded: tuple[Array, Array] | None = None

    @cached_property
    def _encoder(self) -> KnobEncoder:
        return KnobEncoder([self.table(row) for row in range(self.candidate_count)])

    @property
    def axes(self) -> list[Axes]:
        """Mesh axes that each row's configuration uses. A search by predictions alone asks for none."""
        self._axes += (axes_of(self.table(row)) for row in range(len(self._axes), self.size))
        return self._axes

    @property
    def families(self) -> Rows:
        """Family code of each row: rows with equal codes differ only in knobs that may have no effect on the step."""
        added = [self._family(self.table(row)) for row in range(len(self._families), self.size)]
        if added:
            self._families = np.append(self._families, np.array(added, dtype=np.intp))
        return self._families

    @property
    def common(self) -> Array:
        """Encoded values of the knobs that every backend has, a row for each configuration."""
        return self._encode_all()[0]

    @property
    def knobs(self) -> Array:
        """Encoded values of all knobs, a row for each configuration."""
        return self._encode_all()[1]

    def _encode_all(self) -> tuple[Array, Array]:
        common, knobs = self._encoded or self._encoder.encode([])
        if len(knobs) < self.size:
            added = self._encoder.encode([self.table(row) for row in range(len(knobs), self.size)])
            common, knobs = np.vstack([common, added[0]]), np.vstack([knobs, added[1]])
        self._encoded = (common, knobs)
        return self._encoded

    @property
    def knows_speed(self) -> bool:
        """Whether the hardware's rates are known, so that a step's time can be predicted at all."""
        return len(self.parts) > 0

    def parts_at(self, host: float) -> Array:
        """Predicted seconds of each part of a step, one row for each configuration. A kernel launch is assumed to take
        `host` times the seconds in the hardware's rates (`SpeedCalibration.host`)."""
        if host == 1.0 or not self._depends_on_host or not self.knows_speed:
            return self.parts
        # Predicted again for a new factor: 0.1 s for 20,000 configurations, and a study has one or two factors.
        kept = self._host_parts.get(host, self.parts[:0])
        for start in range(len(kept), self.size, _CHUNK):
            configs = [self.config(row) for row in range(start, min(start + _CHUNK, self.size))]
            predicted = predict_rows(self.basis, configs, host).parts
            assert predicted is not None
            kept = np.vstack([kept, predicted])
        self._host_parts[host] = kept
        return kept

    @property
    def size(self) -> int:
        """Number of rows in the pool, one for each configuration."""
        return len(self._tables)

    def config(self, row: int) -> TrialConfig:
        """Configuration of a row of the pool."""
        kept = self._without_key.get(row)
        return self.space.unflatten(self.table(row)) if kept is None else kept

    def table(self, row: int) -> Flat:
        """Value of every knob, by name, in the configuration of a pool's row."""
        names, values = self._tables[row]
        return dict(zip(names, values, strict=True))

    def row_of(self, key: str) -> int | None:
        """Row of the pool whose canonical configuration has this content key (hash), None where there is none."""
        # A search by predictions alone asks for no key, and computing them takes longer than the predictions.
        for row, config in self._without_key.items():
            self._keys[self.space.content_key(config)] = row
        self._without_key.clear()
        return self._keys.get(key)

    def rows(self, configs: Sequence[TrialConfig]) -> list[int]:
        """Rows of the pool for these configurations; configurations that the pool lacks are added."""
        canonical = [self.space.canonical(config) for config in configs]
        tables = [self.space.flatten(config) for config in canonical]
        row_tables = [_table_of(table) for table in tables]
        new = {
            row_table: (config, table)
            for row_table, config, table in zip(row_tables, canonical, tables, strict=True)
            if row_table not in self._rows
        }
        if new:
            self._add([config for config, _ in new.values()], [table for _, table in new.values()])
        return [self._rows[row_table] for row_table in row_tables]

    def neighbour_rows(self, row: int) -> list[int]:
        """Rows of the pool whose configurations differ from this row's in one knob; cached, because the same rows are
        requested repeatedly."""
        near_rows = self._near.get(row)
        if near_rows is None:
            near_rows = self._near[row] = self.rows(list(neighbours(self.space, self.config(row))))
        return near_rows

    def encode(self, configs: Sequence[TrialConfig]) -> tuple[Array, Array, Rows]:
        """Encode configurations, not necessarily of this search space, as arrays: the knobs that every backend has, all
        knobs, and kinds (backend and ZeRO stage)."""
        tables = [self.space.flatten(config) for config in configs]
        return (*self._encoder.encode(tables), self._kinds_of(tables))

    def _kinds_of(self, tables: Sequence[Flat]) -> Rows:
        kinds = [self._kinds.setdefault((table["backend"], table.get("stage")), len(self._kinds)) for table in tables]
        return np.array(kinds, dtype=np.intp)

    def _family(self, table: Flat) -> int:
        """Family code of a configuration: equal for configurations that differ only in knobs that may have no effect on
        the step (`makes_twins`)."""
        own_knobs = ((knob, value) for knob, value in table.items() if knob not in KNOBS or not KNOBS[knob].makes_twins)
        # As text, because in Python True == 1, but `true` and `1` are different values of a knob.
        key = tuple(sorted((knob, repr(value)) for knob, value in own_knobs))
        return self._family_codes.setdefault(key, len(self._family_codes))

    def _add(self, configs: Sequence[TrialConfig], tables: Sequence[Flat]) -> None:
        for table, config in zip(tables, configs, strict=True):
            self._without_key[self.size] = config
            row_table = _table_of(table)
            self._rows[row_table] = self.size
            self._tables.append(row_table)
            self.backends.append(str(table["backend"]))
        self.kinds = np.append(self.kinds, self._kinds_of(tables))
        self.compiled = np.append(self.compiled, [float(config.compile) for config in configs])
        predictions = self._predict(configs)
        self.peak_gib = np.append(self.peak_gib, predictions.peak_gib)
        self.least_gib = np.append(self.least_gib, predictions.least_gib)
        self.host_gib = np.append(self.host_gib, predictions.host_gib)
        if predictions.parts is not None:
            self.parts = np.vstack([self.parts, predictions.parts])


def _table_of(table: Flat) -> _Table:
    return tuple(table), tuple(table.values())


def _initial_candidates(space: Space) -> Iterator[TrialConfig]:
    """Choose the candidates of a large search space: the extreme configurations of each placement of model states, and
    a sample spread evenly over the space."""
    keys: set[str] = set()
    for config in (*islice(space.lightest(), _CORNERS), *sample_evenly(space, DRAWN)):
        key = config.content_key()
        if key not in keys:
            keys.add(key)
            yield config


def sample_evenly(space: Space, count: int) -> Iterator[TrialConfig]:
    """Draw configurations evenly spread over the space with a Kronecker sequence: draw i makes its j-th choice by the
    fractional part of i times the j-th prime's root."""
    roots = np.sqrt(np.array(_PRIMES))
    for number in range(1, count + 1):
        places = iter(np.tile(number * roots % 1.0, 4))

        def choose(_: str, values: tuple[KnobValue, ...], places: Iterator[np.float64] = places) -> KnobValue:
            return values[int(next(places) * len(values))]

        config = space.sample(choose)
        if config is not None:
            yield config


def neighbours(space: Space, config: TrialConfig) -> Iterator[TrialConfig]:
    """Configurations of the space that differ from `config` in one knob, and in the knobs that depend on it."""
    try:
        chosen = space.choices_of(config)
    except ValueError:
        return
    current = {choice.question.param: choice.value for choice in chosen}
    for question, present, start in chosen:
        for value in question.values:
            if value != present or isinstance(value, bool) != isinstance(present, bool):
                near = sample_near(space, current | {question.param: value}, start)
                if near is not None:
                    yield near


def sample_near(space: Space, answers: dict[str, KnobValue], start: DefineByRun | None = None) -> TrialConfig | None:
    """Draw the configuration with these values of the sampler's parameters; a parameter without a given value takes the
    first of its candidates. `start`: state of a drawing that already has the first of these values."""
    return space.sample(lambda param, values: answers[param] if answers.get(param) in values else values[0], start)
