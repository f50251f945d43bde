"""Which candidate to try next: the greatest expected gain for each GPU-second, by prediction and by what was measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialReason, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import (
    CPU_PART_SIGMA,
    NOISE_SIGMA,
    PART_SIGMA,
    PARTS,
    SHARED_SIGMA,
    UNCALIBRATED,
    MemoryCalibration,
    SpeedCalibration,
)
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.guided_sampler.acquisition import (
    TrialCost,
    expected_gain,
    faster_probability,
    infeasible_probability,
    worth,
)
from shardtune.tuner.search.guided_sampler.axes import axes_of, due, first_with
from shardtune.tuner.search.guided_sampler.encoding import Array, Rows
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.residual import Inputs, Posterior, Residual, joined, unseen
from shardtune.tuner.search.samplers.draw import Draw, SearchView

_SHORTLIST = 400
"""Best by prediction, and as many others of a larger pool, which change with every trial."""
_MOST_MEASURED = 120
"""Trials the process is learnt from: the newest and the fastest."""
_MOST_RELATED = 60
_MOST_DRAWS = 64
_WIDENED = 2
"""Fastest trials, and favourites of the prediction, whose neighbours join the candidates."""
_WARM_NOISE = 0.05
"""Of another study's trials, on top: they were measured elsewhere, or at another time."""
_PRUNED_NOISE = 0.05
"""Of a trial that ended within its warm-up, on top."""
_DEVIATIONS = 1.645
_MOST_DIFFERENCES = 4


@dataclass(frozen=True)
class Knowledge:
    """What the predictor has learnt of this hardware, and the memory a rank may use."""

    limit_gib: float
    speed: SpeedCalibration = UNCALIBRATED
    memory: MemoryCalibration = field(default_factory=MemoryCalibration)
    related: Sequence[ComparedRun] = ()
    """Runs of other studies on it, the newest first."""


class GuidedSampler:
    """A sampler of one study at one moment."""

    def __init__(self, pool: Pool, known: Knowledge) -> None:
        self._pool, self._known = pool, known

    def __call__(self, view: SearchView) -> Iterator[Draw | None]:
        """The best candidates, the most promising first."""
        outlook = Outlook(self._pool, self._known, view)
        rows = outlook.candidates
        if not len(rows):
            return
        order = np.argsort(-outlook.worth, kind="stable")[:_MOST_DRAWS]
        for place in (*outlook.unseen_axes, *order):
            yield Draw(self._pool.config(int(rows[place])), outlook.reason(int(place)))


class Outlook:
    """Everything known of a study's candidates after its trials so far."""

    def __init__(self, pool: Pool, known: Knowledge, view: SearchView) -> None:
        self._pool, self._known, self._view = pool, known, view

    @cached_property
    def worth(self) -> Array:
        """Of each candidate: expected gain for each second of a trial, less what a failure would cost."""
        return worth(self.gain, self._risk, self.seconds)

    @cached_property
    def seconds(self) -> Array:
        """Of each candidate's trial."""
        compiled = self._pool.compiled[self.candidates]
        return TrialCost.of(self._view.history).seconds(self.time.mean, compiled)

    @cached_property
    def gain(self) -> Array:
        """Expected improvement over the fastest trial, as a logarithm; before any, over the usual candidate's expectation."""
        return expected_gain(self.time, self._best)

    @cached_property
    def time(self) -> Posterior:
        """Logarithms of step time."""
        inputs = self._inputs(self.candidates)
        if self._residual is None:
            known_by = np.full((1, len(inputs.predicted)), max(self._known.speed.sigma, 0.05))
            return Posterior(np.ones(1), inputs.predicted[None, :], known_by)
        running = [obs.config for obs in self._view.history if obs.state.is_open]
        return self._residual.at(inputs, self._inputs(self._pool.rows(running)))

    @cached_property
    def candidates(self) -> Rows:
        """Rows that may be tried: not taken, and not rejected by the memory gate."""
        pool, known = self._pool, self._known
        taken = {row for key in self._view.taken if (row := pool.row_of(key)) is not None}
        found = [row for row in self._considered() if row not in taken]
        rows = np.array(found, dtype=np.intp)
        least, _ = known.memory.bounds(1.0, GATE_DEVIATIONS)
        fits = pool.least_gib[rows] * least <= known.limit_gib
        if pool.basis.cluster.device == "cuda":
            fits &= pool.host_gib[rows] <= pool.basis.cluster.host_memory_gib
        rows = rows[fits]
        if len(rows) <= 2 * _SHORTLIST:
            return rows
        order = rows[np.argsort(self._predicted(rows), kind="stable")]
        others = np.random.default_rng(self._view.seed).choice(order[_SHORTLIST:], _SHORTLIST, replace=False)
        named = np.array(due(order[_SHORTLIST:], pool.axes, ()), dtype=np.intp)
        return np.concatenate([order[:_SHORTLIST], np.union1d(others, named)])

    @cached_property
    def unseen_axes(self) -> list[int]:
        """Places of candidates that are split over axes which no trial was; none before the sampler's own first trial."""
        history = self._view.history
        if not any(obs.origin is TrialOrigin.SAMPLER for obs in history):
            return []
        rows = self.candidates
        order = np.argsort(self.time.mean, kind="stable")
        tried = (axes_of(self._pool.space.flatten(obs.config)) for obs in history)
        first = set(due(rows[order], self._pool.axes, tried))
        return [int(place) for place in order if int(rows[place]) in first]

    def reason(self, place: int) -> TrialReason:
        """Why the candidate at this place is tried."""
        mean, deviation = float(self.time.mean[place]), float(self.time.deviation[place])
        workload, cluster = self._pool.basis.workload, self._pool.basis.cluster
        tokens = workload.tokens_per_step / cluster.world_size
        spread = float(np.exp(_DEVIATIONS * deviation))
        speed = tokens / float(np.exp(mean))
        return TrialReason(
            expected_gain=float(np.expm1(self.gain[place])),
            probability_faster=faster_probability(self.time, self._best, place),
            probability_infeasible=float(self._risk[place]),
            tokens_per_s_per_gpu=speed,
            low_tokens_per_s_per_gpu=speed / spread,
            high_tokens_per_s_per_gpu=speed * spread,
            tests=self._tests(place),
            expected_gpu_seconds=float(self.seconds[place]) * cluster.world_size,
        )

    @cached_property
    def _risk(self) -> Array:
        known = self._known
        return infeasible_probability(self._pool, self.candidates, self._view.history, known.memory, known.limit_gib)

    @cached_property
    def _measured(self) -> list[Observation]:
        """Trials with a time that can be learnt from; what took too much memory took its time all the same."""
        found = [obs for obs in self._view.history if _has_time(obs)]
        if len(found) > _MOST_MEASURED:
            fastest = sorted(found[: -_MOST_MEASURED // 2], key=_log_time)[: _MOST_MEASURED // 2]
            found = sorted([*fastest, *found[-_MOST_MEASURED // 2 :]], key=lambda obs: obs.number)
        return found

    @cached_property
    def _residual(self) -> Residual | None:
        related, warm = self._related, [obs for obs in self._view.warm if _has_time(obs)][:_MOST_MEASURED]
        learnt = [*warm, *self._measured]
        if not learnt and not related:
            return None
        own = self._inputs(self._pool.rows([obs.config for obs in learnt]))
        times = np.array([_log_time(obs) - self._offset for obs in learnt])
        sigma = CPU_PART_SIGMA if self._pool.basis.cluster.device == "cpu" else PART_SIGMA
        prior = np.array([SHARED_SIGMA, *[sigma] * len(PARTS)])
        weight = max(1.0, self._known.speed.rows / max(1, len(learnt)))
        judged = unseen(own, times, prior, NOISE_SIGMA, weight)
        here = [_PRUNED_NOISE if obs.state is TrialState.PRUNED else 0.0 for obs in self._measured]
        extra = np.array([_WARM_NOISE] * (len(related) + len(warm)) + here)
        rows = joined(self._inputs_of(related), own)
        elsewhere = np.log([run.seconds for run in related])
        return Residual(rows, np.append(elsewhere, times), extra, np.append(rows.predicted[: len(related)], judged))

    @cached_property
    def _related(self) -> list[ComparedRun]:
        """Runs of other studies that say what the prediction misses."""
        found = [run for run in self._known.related if run.parts is not None and run.seconds > 0]
        return found[:_MOST_RELATED][::-1]

    def _inputs_of(self, runs: Sequence[ComparedRun]) -> Inputs:
        common, knobs, kinds = self._pool.place([run.config for run in runs])
        studies = {name: number for number, name in enumerate(dict.fromkeys(run.study for run in runs), start=1)}
        parts = [[run.parts[name] if run.parts else 0.0 for name in PARTS] for run in runs]
        seconds = np.array(parts, dtype=float).reshape(len(runs), len(PARTS)) * self._factors
        total = seconds.sum(axis=1)
        groups = np.array([studies[run.study] for run in runs], dtype=np.intp)
        return Inputs(common, knobs, kinds, groups, seconds / total[:, None], np.log(total))

    @property
    def _offset(self) -> float:
        """Between a logarithm of seconds per token and one of seconds per step."""
        basis = self._pool.basis
        return -float(np.log(basis.workload.tokens_per_step / basis.cluster.world_size))

    @cached_property
    def _fastest(self) -> Observation | None:
        complete = [obs for obs in self._measured if obs.state is TrialState.COMPLETE]
        if not complete or self._residual is None:
            return None
        times = self._expected([obs.config for obs in complete])
        return complete[int(np.argmin(times))]

    @cached_property
    def _best(self) -> float:
        """Log time of the fastest trial as the process sees it, which does not believe one lucky run."""
        if self._fastest is None:
            # Where most of what is fast does not fit, the gain must still tell apart what does.
            return float(np.median(self.time.mean))
        return float(self._expected([self._fastest.config])[0])

    def _expected(self, configs: Sequence[TrialConfig]) -> Array:
        assert self._residual is not None
        return self._residual.mean(self._inputs(self._pool.rows(configs)))

    def _considered(self) -> Sequence[int]:
        pool = self._pool
        if pool.is_whole:
            return range(pool.first)
        quickest = sorted((obs for obs in self._measured if obs.state is TrialState.COMPLETE), key=_log_time)
        base = np.arange(pool.first)
        favourites = base[np.argsort(self._predicted(base), kind="stable")[:_WIDENED]]
        centres = [*pool.rows([obs.config for obs in quickest[:_WIDENED]]), *map(int, favourites)]
        return list(dict.fromkeys([*range(pool.first), *(row for centre in centres for row in pool.near(centre))]))

    def _predicted(self, rows: Rows) -> Array:
        return np.asarray(np.log(self._seconds(rows).sum(axis=1)))

    def _seconds(self, rows: Rows) -> Array:
        return np.asarray(self._pool.parts[rows] * self._factors)

    @property
    def _factors(self) -> Array:
        return np.array([self._known.speed.factors[name] for name in PARTS])

    def _inputs(self, rows: Sequence[int] | Rows) -> Inputs:
        index = np.asarray(rows, dtype=np.intp)
        seconds = self._seconds(index)
        total = seconds.sum(axis=1)
        pool = self._pool
        own, shares = np.zeros(len(index), dtype=np.intp), seconds / total[:, None]
        return Inputs(pool.common[index], pool.knobs[index], pool.kinds[index], own, shares, np.log(total))

    def _tests(self, place: int) -> str:
        row = int(self.candidates[place])
        if place in self.unseen_axes:
            return f"{first_with(self._pool.axes[row])}; {self._differences(row)}"
        return self._differences(row)

    def _differences(self, row: int) -> str:
        own = self._pool.table(row)
        if self._fastest is None:
            return "the fastest by prediction"
        (there,) = self._pool.rows([self._fastest.config])
        other = self._pool.table(there)
        if own["backend"] != other["backend"]:
            return f"{own['backend']} instead of {other['backend']}"
        changes = [f"{knob} {own[knob]} instead of {other[knob]}" for knob in own if own[knob] != other.get(knob)]
        more = len(changes) - _MOST_DIFFERENCES
        return "; ".join(changes[:_MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


GATE_DEVIATIONS = 2.33
"""As `tuner.prediction.memory_gate` has it, which judges whatever is proposed."""


def _has_time(obs: Observation) -> bool:
    return obs.is_measured or (obs.measurement is not None and obs.state is TrialState.INFEASIBLE)


def _log_time(obs: Observation) -> float:
    """Seconds per token of one rank, which is speed's inverse whatever the study's batch."""
    assert obs.measurement is not None
    return -float(np.log(obs.measurement.tokens_per_s_per_gpu))
