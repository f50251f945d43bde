"""Scores of candidate configurations: expected gain per second, risk of failure, and the order of proposals."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import KnobChange, TrialOrigin, TrialReason, TrialState, changes_text
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.prediction.calibration import BAND_DEVIATIONS
from shardtune.tuner.search.guided_sampler.acquisition import (
    TrialCost,
    expected_gain,
    faster_probability,
    infeasible_probability,
    utility,
)
from shardtune.tuner.search.guided_sampler.axes import axes_of, first_reason, first_untried
from shardtune.tuner.search.guided_sampler.candidate_times import CandidateTimes
from shardtune.tuner.search.guided_sampler.encoding import Array, Rows
from shardtune.tuner.search.guided_sampler.knowledge import Knowledge
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.residual import Posterior
from shardtune.tuner.search.guided_sampler.twins import Twins, before_second_twins, first_of_backends
from shardtune.tuner.search.samplers.draw import SearchView
from shardtune.tuner.search.space.legal_values import COMMON

_SHORTLIST = 400
"""Number of candidates that are scored to choose the next trial: the best by prediction, and as many random ones from a
larger pool, redrawn for every trial."""
_MOST_UNTRIED = 8
_MOST_RISK = 0.5
"""Probability of failure above which a candidate is not proposed for the sole reason that its backend has not been
tried."""
_WIDENED = 2
"""Number of fastest trials, and of fastest predictions, whose neighbouring configurations are added to the
candidates."""
_MOST_DIFFERENCES = 4


class CandidateScores:
    """Scores of a study's candidate configurations after its trials so far."""

    def __init__(self, pool: Pool, knowledge: Knowledge, view: SearchView) -> None:
        self._pool, self._knowledge, self._view = pool, knowledge, view
        self._times = CandidateTimes(pool, knowledge, view)

    @cached_property
    def utility(self) -> Array:
        """Utility of each candidate: expected gain in log speed per second of its trial, less the cost of a failure."""
        return utility(self.gain, self._risk, self.seconds)

    @cached_property
    def seconds(self) -> Array:
        """Expected seconds of each candidate's trial."""
        compiled = self._pool.compiled[self.candidates]
        return TrialCost.from_history(self._view.history).seconds(self.time.mean, compiled)

    @cached_property
    def gain(self) -> Array:
        """Expected improvement of each candidate's log speed over the fastest trial; before any trial, over the median
        candidate's."""
        return expected_gain(self.time, self._best)

    @cached_property
    def time(self) -> Posterior:
        """Posterior distribution of each candidate's log step time."""
        return self._times.posterior(self.candidates)

    @cached_property
    def candidates(self) -> Rows:
        """Rows of the pool (candidate configurations) that may be tried: not tried yet, and not rejected by the memory
        gate, which rejects configurations predicted not to fit."""
        pool, knowledge = self._pool, self._knowledge
        taken_rows = {row for key in self._view.taken if (row := pool.row_of(key)) is not None}
        untried = [row for row in self._considered() if row not in taken_rows]
        rows = np.array(untried, dtype=np.intp)
        least, _ = knowledge.memory.bounds(1.0, memory_gate.DEVIATIONS)
        # The gate would reject these one by one; leaving them out keeps the shortlist for candidates that may run.
        fits = pool.least_gib[rows] * least <= knowledge.limit_gib
        if pool.basis.cluster.device == "cuda":
            fits &= pool.host_gib[rows] <= pool.basis.cluster.host_memory_gib
        rows = rows[fits]
        if len(rows) <= 2 * _SHORTLIST:
            return rows
        order = rows[np.argsort(self._times.predicted(rows), kind="stable")]
        random_rows = np.random.default_rng(self._view.seed).choice(order[_SHORTLIST:], _SHORTLIST, replace=False)
        # Rows with an untried axis or backend stay in the shortlist even where the prediction calls them slow: each runs
        # once.
        named = first_untried(order[_SHORTLIST:], pool.axes, ())
        named += first_of_backends(order, pool.backends, self._known_backends)
        remaining = np.setdiff1d(np.array(named, dtype=np.intp), order[:_SHORTLIST])
        return np.concatenate([order[:_SHORTLIST], np.union1d(random_rows, remaining)])

    @cached_property
    def unseen_axes(self) -> list[int]:
        """Indices of candidates that use mesh axes which no trial has used; empty until the sampler has chosen its
        first trial itself."""
        history = self._view.history
        if not any(obs.origin is TrialOrigin.SAMPLER for obs in history):
            return []
        rows = self.candidates
        order = np.argsort(self.time.mean, kind="stable")
        measured_axes = (axes_of(self._pool.space.flatten(obs.config)) for obs in history)
        first = set(first_untried(rows[order], self._pool.axes, measured_axes))
        return [int(index) for index in order if int(rows[index]) in first]

    def proposals(self) -> Iterator[int]:
        """Yield indices of candidates in the order of proposal: first untried mesh axes, then by utility. But each
        backend is tried once before a second twin (a candidate that is predicted to behave like one already tried)."""
        order = [int(index) for index in self._order]
        if not self.untried:
            return chain(self.unseen_axes, order)
        rows, tried_rows = self.candidates, np.array(self._pool.rows(self._tried_configs), dtype=np.intp)
        twin_rows = self.twins.with_twin_among(rows, tried_rows)
        second_twins = {index for index in order if int(rows[index]) in twin_rows}
        return chain(self.unseen_axes, before_second_twins(order, self.untried[:_MOST_UNTRIED], second_twins))

    @cached_property
    def untried(self) -> list[int]:
        """Indices of candidates that will probably run and whose backend no trial has measured on this machine, most
        useful first."""
        backends = (self._pool.backends[row] for row in self.candidates[self._order])
        return [
            int(index)
            for index, backend in zip(self._order, backends, strict=True)
            if backend not in self._known_backends and self._risk[index] < _MOST_RISK
        ]

    @cached_property
    def _order(self) -> Rows:
        return np.argsort(-self.utility, kind="stable")

    @cached_property
    def _known_backends(self) -> set[str]:
        """Backends that a trial of this study, or of another one on this hardware, has used."""
        others = [obs.config for obs in self._view.warm] + [run.config for run in self._times.related]
        return {config.backend for config in (*self._tried_configs, *others)}

    @cached_property
    def _tried_configs(self) -> list[TrialConfig]:
        return [obs.config for obs in self._view.history if obs.state is not TrialState.CANCELLED]

    @cached_property
    def twins(self) -> Twins:
        """Twins: candidates that count as one, because the predictor, calibrated by this study's trials, sees no
        difference between them."""
        _, highest = self._knowledge.memory.bounds(1.0, memory_gate.DEVIATIONS)
        return Twins(self._pool, self._times.seconds, self._knowledge.limit_gib / highest)

    def reason(self, index: int, row: int) -> TrialReason:
        """Reason for the proposal, shown to the user: why the sampler prefers the candidate at this index, or its twin
        (the equivalent configuration) in this row of the pool."""
        mean, deviation = float(self.time.mean[index]), float(self.time.deviation[index])
        workload, cluster = self._pool.basis.workload, self._pool.basis.cluster
        tokens = workload.tokens_per_step / cluster.world_size
        spread = float(np.exp(BAND_DEVIATIONS * deviation))
        speed = tokens / float(np.exp(mean))
        return TrialReason(
            expected_gain=float(np.expm1(self.gain[index])),
            probability_faster=faster_probability(self.time, self._best, index),
            probability_infeasible=float(self._risk[index]),
            tokens_per_s_per_gpu=speed,
            low_tokens_per_s_per_gpu=speed / spread,
            high_tokens_per_s_per_gpu=speed * spread,
            tests=changes_text(self._tested_parts(index, row)),
            expected_gpu_seconds=float(self.seconds[index]) * cluster.world_size,
            compared_trial=None if self._times.fastest is None else self._times.fastest.number,
        )

    @cached_property
    def _risk(self) -> Array:
        knowledge = self._knowledge
        return infeasible_probability(
            self._pool, self.candidates, self._view.history, knowledge.memory, knowledge.limit_gib
        )

    @cached_property
    def _best(self) -> float:
        """Log step time of the fastest trial as estimated by the Gaussian process, so that one lucky run counts little;
        before any trial, the median candidate's."""
        if self._times.fastest is None:
            # The median, not the minimum: where most fast candidates do not fit, the gain must still separate those that do.
            return float(np.median(self.time.mean))
        return float(self._times.expected([self._times.fastest.config])[0])

    def _considered(self) -> Sequence[int]:
        pool = self._pool
        if pool.is_complete:
            return range(pool.candidate_count)
        # A large pool is a sample, so the neighbours of the best join it.
        base = np.arange(pool.candidate_count)
        favourites = base[np.argsort(self._times.predicted(base), kind="stable")[:_WIDENED]]
        centres = [*pool.rows(self._times.quickest(_WIDENED)), *map(int, favourites)]
        return list(
            dict.fromkeys(
                [*range(pool.candidate_count), *(row for centre in centres for row in pool.neighbour_rows(centre))]
            )
        )

    def _tested_parts(self, index: int, row: int) -> list[KnobChange | str]:
        first = [first_reason(self._pool.axes[row])] if index in self.unseen_axes else []
        return [*first, *self._differences(row)]

    def _differences(self, row: int) -> list[KnobChange | str]:
        table = self._pool.table(row)
        if self._times.fastest is None:
            return ["the fastest by prediction"]
        (fastest_row,) = self._pool.rows([self._times.fastest.config])
        fastest_table = self._pool.table(fastest_row)
        # The settings of two backends are no changes of each other; those that every backend has are.
        is_other = table["backend"] != fastest_table["backend"]
        changes = [
            KnobChange("" if knob == "backend" else knob, str(table[knob]), str(fastest_table[knob]))
            for knob in (("backend", *COMMON) if is_other else table)
            if knob in table and table[knob] != fastest_table.get(knob)
        ]
        hidden_count = len(changes) - _MOST_DIFFERENCES
        return [*changes[:_MOST_DIFFERENCES], *([f"and {hidden_count} more"] if hidden_count > 0 else [])]
