"""Fastest configurations of a search space that are predicted to fit in memory, found without any trial: used by
`shardtune predict` and the calculator.

The search evaluates every placement of model states, micro batch and checkpointing with the other knobs at their
defaults. From the fastest of these configurations it descends, changing one knob at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.api_schemas.training.search_space import KnobValue, SpaceLimits
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest, PredictionTable
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import catalogue, predict, prediction_request, prediction_table, traced_shape
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, PARTS, Calibrations
from shardtune.tuner.prediction.prediction_request import ResolvedRequest
from shardtune.tuner.prediction.shapes import calibration_choice
from shardtune.tuner.search import equal_ranks, levers
from shardtune.tuner.search import space as spaces
from shardtune.tuner.search.guided_sampler.pool import Pool, neighbours
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictionBasis
from shardtune.tuner.search.space import Space, choices
from shardtune.tuner.search.space.backends.registry import BACKENDS, KNOBS
from shardtune.tuner.search.space.flat import flatten
from shardtune.tuner.search.space.legal_values import COMMON
from shardtune.tuner.search.space.questions import Question

_TOP, _MOST_TOP = 10, 100
"""Default number of fastest configurations in the answer to a prediction request, and the maximum that a request may
ask for."""
_MESH_KNOBS = {"context_parallel", "tensor_parallel", "pipeline_parallel", "expert_parallel"}
_EXHAUSTIVE_KNOBS = {
    *("backend", "micro_batch", "activation_checkpointing", "checkpoint_every", "dp_shard"),
    *_MESH_KNOBS,
}
"""Names of the knobs, besides those that place model states, for which the prediction search evaluates every value."""
_MOST_VALUES = 24
"""Maximum number of values of a knob among the configurations with which the prediction search starts, spread evenly
over all values (73,920 GPUs allow 112 sizes of a shard group alone). Later steps evaluate the values between, near the
fastest configurations."""
_SURE_AMONG = 4
"""Number of configurations that are examined for each requested configuration, in search of one that surely fits in
memory."""
_SURE_AMONG_AT_LEAST = 60
_WIDER = 2
"""Number of fastest configurations considered, as a multiple of the requested number; of those that are equally fast,
the simplest are returned."""
_STEPS = 8
_NEAR_PEAK = 1.5
"""Multiple of the usable memory. If no configuration fits, but one is predicted to need at most this much,
configurations with compiled blocks are tried as well, since they keep less memory."""
_STARTS_PER_KIND = 2
"""Number of fastest configurations of each kind (backend and ZeRO stage) whose neighbours (configurations with one knob
changed) are evaluated in one step of the prediction search."""
_WITHOUT_TERM: dict[str, Any] = {name: knob.default for name, knob in COMMON.items() if knob.without_term}
"""Default values of the knobs that have no effect on predictions, by knob name."""


def answer_request(
    request: PredictionRequest,
    calibrations: Calibrations = NO_CALIBRATIONS,
    device: DeviceDtypes | None = None,
    objective: Objective = Objective(),
) -> PredictionTable:
    """Answer a prediction request with a table of configurations, the fastest first: for `shardtune predict`, `POST
    /v1/predictions` and the calculator.

    Raises:
        ValueError: the request is invalid (see `prediction_request.resolve`), or the ranks do not divide its global
            batch.
    """
    resolved = prediction_request.resolve(request, device)
    # Predictions are held against the memory that a rank may use: the study keeps a fraction of it free.
    usable = resolved.cluster.model_copy(update={"memory_gib": available_gib(resolved.cluster, objective)})
    about = replace(resolved, cluster=usable)
    count = request.top if request.top is not None else 0 if request.configs else _TOP
    fastest = fastest_configs(about, calibrations, count) if count else ()
    # One program in both tables: eager strategies beside compiled configurations would look slower than they are.
    is_compiled = bool(fastest) and fastest[0].config.compile
    answer = prediction_table.predict_all(about, calibrations, compiled=is_compiled)
    on_host_gib = max((row.memory.host_gib_per_node for row in (*fastest, *answer.predictions)), default=0.0)
    is_assumed = isinstance(request.cluster, str) and on_host_gib > 0
    notes = (catalogue.host_memory_note(resolved.cluster, on_host_gib),) if is_assumed else ()
    answer = answer.model_copy(update={"cluster": resolved.cluster, "notes": (*answer.notes, *notes)})
    if not count:
        return answer
    # Without rates nothing can be ranked, whatever fits. A space of FSDP1 alone has no row in the table of strategies.
    is_ranked = all(row.speed is not None for row in (*fastest, *answer.predictions))
    needs_lever = is_ranked and levers.are_needed(fastest, about.cluster.memory_gib)
    return answer.model_copy(
        update={
            "global_batch": about.global_batch,
            "fastest": fastest,
            "equal_within": equal_ranks.EQUAL_WITHIN,
            "levers": levers.find(about, calibrations, fastest_configs) if needs_lever else (),
        }
    )


def fastest_configs(resolved: ResolvedRequest, calibrations: Calibrations, count: int) -> tuple[Prediction, ...]:
    """Predict the `count` fastest configurations and rank them: first those that surely fit in memory, then those that
    may fit. Among configurations of one rank the simplest comes first. The first configuration is the same for every
    `count`.

    Empty where nothing fits, or where the hardware's rates are unknown.

    Raises:
        ValueError: the ranks do not divide the global batch.
    """
    basis = PredictionBasis(
        resolved.shape, resolved.workload(resolved.global_batch), resolved.cluster, resolved.request.hardware
    )
    memory = calibration_choice.memory_calibration(calibrations, resolved.shape)
    calibration = calibration_choice.speed_calibration(calibrations, resolved.shape)
    factors = tuple(calibration.factors[name] for name in PARTS)
    limits = resolved.request.space.model_dump_json()
    ranked = _rank_configs(
        basis,
        limits,
        factors,
        calibration.host,
        resolved.cluster.memory_gib / memory.factor,
        _SURE_AMONG_AT_LEAST if count <= _TOP else _SURE_AMONG * _MOST_TOP,
    )

    def predict_each(configs: tuple[TrialConfig, ...]) -> tuple[Prediction, ...]:
        return predict.predict_each(
            basis.shape, basis.workload, basis.cluster, configs, memory, calibration, measured=basis.hardware
        )

    # Which of equally fast configurations is the simplest depends on how many are compared: a request for one, such as
    # that of an explanation, must name the same as the usual table.
    usual = _choose(ranked, predict_each, _TOP)
    if count <= _TOP:
        return usual[:count]
    return (*usual[:1], *(row for row in _choose(ranked, predict_each, count) if row.config != usual[0].config))[:count]


def _choose(
    ranked: tuple[TrialConfig, ...],
    predict_each: Callable[[tuple[TrialConfig, ...]], tuple[Prediction, ...]],
    count: int,
) -> tuple[Prediction, ...]:
    """Choose and rank `count` of the configurations, which are given by rising step time."""
    among = ranked[: max(_SURE_AMONG * count, _SURE_AMONG_AT_LEAST)]
    # Wider than asked for: the simplest of equally fast configurations may come after the first `count`.
    wide = equal_ranks.simplest_first(predict_each(among[: _WIDER * count]))
    predictions = sorted(wide[:count], key=_step_time_s)
    # A user needs one answer that fits: where none of the fastest does, the last gives way to the fastest that surely
    # fits.
    if not any(map(_surely_fits, predictions)):
        others = [*wide[count:], *predict_each(among[_WIDER * count :])]
        fitting = equal_ranks.simplest(sorted(filter(_surely_fits, others), key=_step_time_s))
        predictions = predictions if fitting is None else [*predictions[: count - 1], fitting]
    return equal_ranks.rank(sorted(predictions, key=lambda prediction: not _surely_fits(prediction)))


def _step_time_s(prediction: Prediction) -> float:
    return prediction.speed.step_time_s if prediction.speed is not None else np.inf


def _surely_fits(prediction: Prediction) -> bool:
    return prediction.memory.verdict == "fits"


# The calculator's form sends a request after every keystroke.
@lru_cache(maxsize=64)
def _rank_configs(
    basis: PredictionBasis, limits: str, factors: tuple[float, ...], host: float, usable_gib: float, count: int
) -> tuple[TrialConfig, ...]:
    """Order configurations by rising predicted time of a step.

    `limits`: limits of the search space as JSON, because a cached function needs hashable arguments. `factors`:
    calibration factors of the parts of a step's time. `host`: factor on the seconds of a kernel launch. `usable_gib`:
    limit on the predicted peak memory, which is not calibrated here.
    """
    study_limits = SpaceLimits.model_validate_json(limits)
    narrowed = study_limits.model_copy(update={"knobs": _WITHOUT_TERM | study_limits.knobs})
    space = spaces.build(basis.workload, basis.cluster, traced_shape.summary_of(basis.shape), narrowed)
    ranking = Ranking(Pool(space, basis, _outline_configs(space)), np.array(factors), host, usable_gib)
    if not ranking.pool.knows_speed:
        return ()
    if not np.isfinite(ranking.seconds()).any():
        # No step of the descent begins at a configuration that does not fit. Compiled blocks and MLPs in slices keep less.
        if ranking.is_nearly_fitting:
            ranking.pool.rows([*_outline_configs(space, is_compiled=True)])
        if _may_slice_mlps(space):
            ranking.pool.rows([*_outline_configs(space, slices_mlps=True)])
    ranking.descend()
    return tuple(ranking.distinct(count))


def _may_slice_mlps(space: Space) -> bool:
    """Whether the space has MLPs in slices even for micro batches of one sample."""
    domains, limits = space.domains, space.limits
    is_possible = any(domains.why_no_mlp_slices(backend) is None for backend in limits.backends)
    return is_possible and not limits.requires("mlp_slices", 1) and domains.mlp_matters(1, 1)


def _outline_configs(space: Space, *, is_compiled: bool = False, slices_mlps: bool = False) -> Iterator[TrialConfig]:
    """Enumerate the configurations from which the prediction search starts: every placement of model states, micro
    batch and checkpointing, with the documented defaults of all other knobs. `is_compiled`: whether blocks are
    compiled, where the space allows it. `slices_mlps`: whether MLPs are computed in the most slices of the space."""
    defaults = {
        knob: value
        for backend in BACKENDS.values()
        for strategy in backend.defaults(space.domains.cluster)
        for knob, value in flatten(TrialConfig(strategy=strategy)).items()
    }

    def narrow(question: Question) -> tuple[KnobValue, ...]:
        knob = KNOBS.get(question.knob)
        if question.knob in _EXHAUSTIVE_KNOBS or (knob is not None and knob.places_states):
            return choices.spread(question.values, _MOST_VALUES)
        if question.knob == "loss" and "chunked" in question.values:
            # Chunks where they are tried: over long sequences all logits fit nowhere, and no start of the descent would.
            return ("chunked",)
        if question.knob == "compile" and is_compiled and True in question.values:
            return (True,)
        if question.knob == "mlp_slices" and slices_mlps:
            return choices.lightest_values(question)
        index = choices.nearest_index(defaults.get(question.knob), question.values)
        return (question.values[index or 0],)

    return space.enumerate(narrow)


@dataclass(frozen=True)
class Ranking:
    """Candidate configurations evaluated so far in a prediction search, ordered by predicted time of a step."""

    pool: Pool
    factors: NDArray[np.float64]
    host: float
    """Factor on the seconds of a kernel launch by which the host differs from the catalogue's figures."""
    usable_gib: float

    def seconds(self) -> NDArray[np.float64]:
        """Predicted seconds of a step for each row; infinite where the configuration is predicted not to fit in
        memory."""
        pool = self.pool
        fits = (pool.peak_gib <= self.usable_gib) & (pool.host_gib <= pool.basis.cluster.host_memory_gib)
        return np.where(fits, pool.parts_at(self.host) @ self.factors, np.inf)

    @property
    def is_nearly_fitting(self) -> bool:
        """Whether some configuration would fit if it kept less for backward, as compiled blocks do: host memory has
        room for it, and its predicted peak is at most `_NEAR_PEAK` times the limit."""
        pool = self.pool
        has_room = pool.host_gib <= pool.basis.cluster.host_memory_gib
        return bool(np.any(has_room & (pool.peak_gib <= _NEAR_PEAK * self.usable_gib)))

    def descend(self) -> None:
        """Search by descent: evaluate the neighbours of the fastest configurations of each kind (backend and ZeRO
        stage), repeatedly, until no new configuration is among the fastest."""
        pool, visited = self.pool, set[int]()
        for _ in range(_STEPS):
            seconds = self.seconds()
            order = np.argsort(seconds)
            unvisited = [
                int(row)
                for kind in sorted(set(pool.kinds.tolist()))
                for row in order[pool.kinds[order] == kind][:_STARTS_PER_KIND]
                if int(row) not in visited and np.isfinite(seconds[row])
            ]
            if not unvisited:
                return
            visited.update(unvisited)
            pool.rows([near for row in unvisited for near in neighbours(pool.space, pool.config(row))])

    def distinct(self, count: int) -> Iterator[TrialConfig]:
        """Configurations by rising predicted step time; of several configurations with the same description, only the
        fastest."""
        seconds, descriptions = self.seconds(), set[str]()
        for row in map(int, np.argsort(seconds, kind="stable")):
            if not np.isfinite(seconds[row]) or len(descriptions) == count:
                return
            config = self.pool.config(row)
            if config.describe() not in descriptions:
                descriptions.add(config.describe())
                yield config
