"""Step times of candidates: predictions, corrected by a Gaussian process over what this study and others measured."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import CPU_SPREAD, GPU_SPREAD, NOISE_SIGMA, PARTS
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.guided_sampler.encoding import Array, Rows
from shardtune.tuner.search.guided_sampler.knowledge import Knowledge
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.residual import Inputs, Posterior, Residual, concatenate, leave_one_out
from shardtune.tuner.search.samplers.draw import SearchView

_MOST_MEASURED = 120
"""Maximum number of trials that the Gaussian process is fitted to: the newest and the fastest."""
_MOST_RELATED = 60
_WARM_NOISE = 0.05
"""Additional standard deviation of the log time of another study's trials, because they were measured elsewhere or at
another time."""
_PRUNED_NOISE = 0.05
"""Additional standard deviation of the log time of a trial that ended within its warm-up."""


class CandidateTimes:
    """Log step times of a study's candidates: as predicted, and as estimated after the study's trials so far."""

    def __init__(self, pool: Pool, knowledge: Knowledge, view: SearchView) -> None:
        self._pool, self._knowledge, self._view = pool, knowledge, view

    def posterior(self, rows: Rows) -> Posterior:
        """Posterior distribution of the log step time of candidates."""
        inputs = self._inputs(rows)
        if self._residual is None:
            deviations = np.full((1, len(inputs.predicted)), max(self._knowledge.speed.sigma, 0.05))
            return Posterior(np.ones(1), inputs.predicted[None, :], deviations)
        running = [obs.config for obs in self._view.history if obs.state.is_open]
        return self._residual.posterior(inputs, self._inputs(self._pool.rows(running)))

    def expected(self, configs: Sequence[TrialConfig]) -> Array:
        """Estimated mean log step times of these configurations, available once a trial has been measured."""
        assert self._residual is not None
        return self._residual.mean(self._inputs(self._pool.rows(configs)))

    def predicted(self, rows: Rows) -> Array:
        """Logarithm of candidates' predicted step times."""
        return np.asarray(np.log(self.seconds(rows).sum(axis=1)))

    def seconds(self, rows: Rows) -> Array:
        """Predicted seconds of each part of the candidates' steps, such as communication."""
        return np.asarray(self._pool.parts_at(self._knowledge.speed.host)[rows] * self._factors)

    @cached_property
    def fastest(self) -> Observation | None:
        """Fastest complete trial as the Gaussian process estimates it, so that one lucky run counts little; None before
        any complete trial."""
        complete = [obs for obs in self._measured if obs.state is TrialState.COMPLETE]
        if not complete or self._residual is None:
            return None
        times = self.expected([obs.config for obs in complete])
        return complete[int(np.argmin(times))]

    def quickest(self, number: int) -> list[TrialConfig]:
        """Configurations of the complete trials that were measured fastest."""
        complete = (obs for obs in self._measured if obs.state is TrialState.COMPLETE)
        return [obs.config for obs in sorted(complete, key=_log_time)[:number]]

    @cached_property
    def related(self) -> list[ComparedRun]:
        """Runs of other studies on this hardware, from which the sampler learns the prediction's errors."""
        runs = [run for run in self._knowledge.related if run.is_timed]
        return runs[:_MOST_RELATED][::-1]

    @cached_property
    def _measured(self) -> list[Observation]:
        """Trials whose measured step time the sampler learns from, also trials that exceeded memory."""
        timed = [obs for obs in self._view.history if _has_time(obs)]
        if len(timed) > _MOST_MEASURED:
            # The process costs the cube of its rows.
            fastest = sorted(timed[: -_MOST_MEASURED // 2], key=_log_time)[: _MOST_MEASURED // 2]
            timed = sorted([*fastest, *timed[-_MOST_MEASURED // 2 :]], key=lambda obs: obs.number)
        return timed

    @cached_property
    def _residual(self) -> Residual | None:
        related, warm = self.related, [obs for obs in self._view.warm if _has_time(obs)][:_MOST_MEASURED]
        learnt = [*warm, *self._measured]
        if not learnt and not related:
            return None
        own_rows = self._inputs(self._pool.rows([obs.config for obs in learnt]))
        times = np.array([_log_time(obs) - self._offset for obs in learnt])
        prior = (CPU_SPREAD if self._pool.basis.cluster.device == "cpu" else GPU_SPREAD).deviations
        weight = max(1.0, self._knowledge.speed.rows / max(1, len(learnt)))
        # The calibration was fitted to these trials, too, so the prediction is judged by what it would say without
        # each.
        held_out = leave_one_out(own_rows, times, prior, NOISE_SIGMA, weight)
        own_noise = [_PRUNED_NOISE if obs.state is TrialState.PRUNED else 0.0 for obs in self._measured]
        extra = np.array([_WARM_NOISE] * (len(related) + len(warm)) + own_noise)
        rows = concatenate(self._inputs_of(related), own_rows)
        related_times = np.log([run.seconds for run in related])
        return Residual(
            rows, np.append(related_times, times), extra, np.append(rows.predicted[: len(related)], held_out)
        )

    def _inputs_of(self, runs: Sequence[ComparedRun]) -> Inputs:
        common, knobs, kinds = self._pool.encode([run.config for run in runs])
        studies = {name: number for number, name in enumerate(dict.fromkeys(run.study for run in runs), start=1)}
        host = self._knowledge.speed.host
        parts = [[run.parts_by_host[host][name] for name in PARTS] for run in runs]
        seconds = np.array(parts, dtype=float).reshape(len(runs), len(PARTS)) * self._factors
        total = seconds.sum(axis=1)
        groups = np.array([studies[run.study] for run in runs], dtype=np.intp)
        return Inputs(common, knobs, kinds, groups, seconds / total[:, None], np.log(total))

    @property
    def _offset(self) -> float:
        """Offset that converts the logarithm of seconds per step to that of seconds per token of a rank."""
        basis = self._pool.basis
        return -float(np.log(basis.workload.tokens_per_step / basis.cluster.world_size))

    @property
    def _factors(self) -> Array:
        return np.array([self._knowledge.speed.factors[name] for name in PARTS])

    def _inputs(self, rows: Sequence[int] | Rows) -> Inputs:
        index = np.asarray(rows, dtype=np.intp)
        seconds = self.seconds(index)
        total = seconds.sum(axis=1)
        pool = self._pool
        own_study, shares = np.zeros(len(index), dtype=np.intp), seconds / total[:, None]
        return Inputs(pool.common[index], pool.knobs[index], pool.kinds[index], own_study, shares, np.log(total))


def _has_time(obs: Observation) -> bool:
    return obs.is_measured or (obs.measurement is not None and obs.state is TrialState.INFEASIBLE)


def _log_time(obs: Observation) -> float:
    """Logarithm of a rank's measured seconds per token, comparable between studies of different batch sizes."""
    assert obs.measurement is not None
    return -float(np.log(obs.measurement.tokens_per_s_per_gpu))
