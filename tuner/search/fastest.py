"""The fastest configurations of a search space that should fit, by prediction alone: what `predict` and the calculator begin with.

Not the whole space is looked at: every placement of model states, micro batch and checkpointing with the other knobs at their
defaults, and from the fastest of these downhill, one knob at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Objective
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.api_schemas.training.search_space import KnobValue, SpaceLimits
from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest, PredictionTable
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import configs, learning, predict, prediction_request, traced_shape
from shardtune.tuner.prediction.calibration import NOTHING_LEARNT, PARTS, Calibrations
from shardtune.tuner.prediction.prediction_request import AskedPrediction
from shardtune.tuner.search import space as spaces
from shardtune.tuner.search.guided_sampler.pool import Pool, PredictionBasis, neighbours
from shardtune.tuner.search.space import Space, choices
from shardtune.tuner.search.space.backends.registry import BACKENDS, KNOBS
from shardtune.tuner.search.space.define_by_run import Question
from shardtune.tuner.search.space.flat import flatten

_TOP = 10
_SETTLED = {"backend", "micro_batch", "activation_checkpointing", "checkpoint_every", "dp_shard"}
"""Looked at whole, beside what places model states."""
_SURE_AMONG = 4
"""Times as many configurations as were asked for are looked through for one that surely fits."""
_STEPS = 8
_WIDE = 2
"""Configurations of each kind from which a step goes on."""
_WITHOUT_TERM: dict[str, Any] = {name: TrialConfig.model_fields[name].default for name in configs.WITHOUT_TERM}
"""Knobs that change no prediction, at their defaults."""


def table(
    request: PredictionRequest,
    known: Calibrations = NOTHING_LEARNT,
    device: DeviceDtypes | None = None,
    objective: Objective = Objective(),
) -> PredictionTable:
    """Answer a request, the fastest of the space first: `shardtune predict`, `POST /v1/predictions` and the calculator.

    All of it is asked of what a rank may use: its memory less what the study is to keep free.

    Raises:
        ValueError: as `prediction_request.resolve`, or a global batch that the ranks do not divide.
    """
    given = prediction_request.resolve(request, device)
    usable = given.cluster.model_copy(update={"memory_gib": available_gib(given.cluster, objective)})
    about = replace(given, cluster=usable)
    made = predict.table(about, known).model_copy(update={"cluster": given.cluster})
    count = request.top if request.top is not None else 0 if request.configs else _TOP
    if not count:
        return made
    return made.model_copy(update={"global_batch": about.global_batch, "fastest": fastest(about, known, count)})


def fastest(about: AskedPrediction, known: Calibrations, count: int) -> tuple[Prediction, ...]:
    """At most `count`: those that surely fit, then those that may, each fastest first; none where nothing fits, or where the
    hardware's rates are unknown.

    These are the fastest of all; but the last gives way to the fastest that surely fits where none of them does.

    Raises:
        ValueError: the ranks do not divide the global batch.
    """
    basis = PredictionBasis(about.shape, about.workload(about.global_batch), about.cluster, about.request.hardware)
    memory = learning.memory_of(known, about.shape)
    factors = tuple(known.speed.factors[name] for name in PARTS)
    ranked = _ranked(basis, factors, about.cluster.memory_gib / memory.factor, _SURE_AMONG * count)

    def predicted(config: TrialConfig) -> Prediction:
        return predict.predict(
            basis.shape, basis.workload, basis.cluster, config, memory, known.speed, measured=basis.hardware
        )

    found = [predicted(config) for config in ranked[:count]]
    if not any(map(_is_sure, found)):
        sure = next((one for one in map(predicted, ranked[count:]) if _is_sure(one)), None)
        found = found if sure is None else [*found[: count - 1], sure]
    return tuple(sorted(found, key=lambda one: not _is_sure(one)))


def _is_sure(one: Prediction) -> bool:
    return one.memory.verdict == "fits"


# A form asks anew after every key.
@lru_cache(maxsize=64)
def _ranked(
    basis: PredictionBasis, factors: tuple[float, ...], usable_gib: float, count: int
) -> tuple[TrialConfig, ...]:
    """`factors`: of the parts of a step's time; `usable_gib`: as predicted, before the calibration of memory."""
    limits = SpaceLimits(knobs=_WITHOUT_TERM)
    space = spaces.build(basis.workload, basis.cluster, traced_shape.profile_of(basis.shape), limits)
    ranking = Ranking(Pool(space, basis, _outline(space)), np.array(factors), usable_gib)
    if not ranking.pool.knows_speed:
        return ()
    ranking.descend()
    return tuple(ranking.distinct(count))


def _outline(space: Space) -> Iterator[TrialConfig]:
    """Each placement of states at each micro batch and checkpointing, and the documented values of the rest."""
    defaults = {
        knob: value
        for backend in BACKENDS.values()
        for strategy in backend.defaults(space.domains.cluster)
        for knob, value in flatten(TrialConfig(strategy=strategy)).items()
    }

    def narrow(question: Question) -> tuple[KnobValue, ...]:
        knob = KNOBS.get(question.knob)
        if question.knob in _SETTLED or (knob is not None and knob.places):
            return question.values
        index = choices.nearest(defaults.get(question.knob), question.values)
        return (question.values[index or 0],)

    return space.enumerate(narrow)


@dataclass(frozen=True)
class Ranking:
    """The candidates looked at so far, by predicted time."""

    pool: Pool
    factors: NDArray[np.float64]
    usable_gib: float

    def seconds(self) -> NDArray[np.float64]:
        """Of a step; infinite for what should not fit."""
        pool = self.pool
        fits = (pool.peak_gib <= self.usable_gib) & (pool.host_gib <= pool.basis.cluster.host_memory_gib)
        return np.where(fits, pool.parts @ self.factors, np.inf)

    def descend(self) -> None:
        """Look at what lies around the fastest of each kind, until that is known."""
        pool, seen = self.pool, set[int]()
        for _ in range(_STEPS):
            seconds = self.seconds()
            order = np.argsort(seconds)
            due = [
                int(row)
                for kind in np.unique(pool.kinds)
                for row in order[pool.kinds[order] == kind][:_WIDE]
                if int(row) not in seen and np.isfinite(seconds[row])
            ]
            if not due:
                return
            seen.update(due)
            pool.rows([near for row in due for near in neighbours(pool.space, pool.config(row))])

    def distinct(self, count: int) -> Iterator[TrialConfig]:
        """In rising order of time; of those that read alike, the fastest."""
        seconds, said = self.seconds(), set[str]()
        for row in map(int, np.argsort(seconds, kind="stable")):
            if not np.isfinite(seconds[row]) or len(said) == count:
                return
            config = self.pool.config(row)
            if config.describe() not in said:
                said.add(config.describe())
                yield config
