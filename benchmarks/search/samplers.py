"""The samplers that are compared, all behind the same memory gate and on the same measured configurations."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal

import numpy as np

from benchmarks.search.deepspeed_tuners import TUNERS, DeepSpeedAsk
from benchmarks.search.measured import MeasuredTable
from benchmarks.search.replay import Ask, View, replay
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.cli.errors import InputError
from shardtune.tuner.prediction.calibration import CPU_SPREAD, GPU_SPREAD, PARTS, UNCALIBRATED, fit_speed
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.guided_sampler.knowledge import Knowledge
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.sampler import GuidedSampler
from shardtune.tuner.search.samplers import gp_needs, optuna_samplers
from shardtune.tuner.search.samplers.draw import Sampler
from shardtune.tuner.search.suggest import next_config

Predictions = Literal["made", "shuffled", "reversed"]
EARLIER_TRIALS = 8
"""Name of the search on a table that was searched before."""


@dataclass(frozen=True)
class Entry:
    """A sampler that can take part."""

    start: Callable[[MeasuredTable, int], Ask]
    """Makes a sampler for a table and a seed."""
    needs: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def missing(self) -> list[str]:
        """Packages it needs and that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


def _proposed(view: View, table: MeasuredTable, seed: int, sampler: Sampler) -> TrialConfig | None:
    proposal = next_config(table.space, (), view.history, view.rejected, view.gate, seed, sampler=sampler)
    view.rejected.update(rejection.config.content_key() for rejection in proposal.rejections)
    return proposal.config


def _of_optuna(sampler: Sampler, table: MeasuredTable, seed: int) -> Ask:
    return lambda view: _proposed(view, table, seed, sampler)


def _random(table: MeasuredTable, seed: int) -> Ask:
    """A permutation of what was measured: uniform without repeats, which draws knob by knob are not."""
    order = list(table.space.measured)
    random.Random(seed).shuffle(order)
    remaining_order = iter(order)
    return lambda view: next((config for config in remaining_order if view.gate(config) is None), None)


class Guided:
    """The product's guided sampler. One pool serves all seeds of a table, as it serves all asks of a study."""

    def __init__(self, predictions: Predictions = "made", after: MeasuredTable | None = None) -> None:
        """`after`: this table was searched on the same machine before, and what was measured there is known."""
        self._predictions, self._after = predictions, after
        self._pools: dict[str, Pool] = {}

    def __call__(self, table: MeasuredTable, seed: int) -> Ask:
        """The sampler with what it learns in this search alone."""
        pool = self._pools.get(table.name)
        if pool is None:
            pool = self._pools[table.name] = table.pool()
            _disturb(pool, self._predictions)
        return partial(self._ask, table, seed, pool, self._before(seed))

    def _before(self, seed: int) -> list[ComparedRun]:
        if self._after is None:
            return []
        earlier = replay(self._after, Guided()(self._after, seed), seed, EARLIER_TRIALS)
        return self._after.compared(earlier.history)[::-1]

    def _ask(
        self, table: MeasuredTable, seed: int, pool: Pool, related: list[ComparedRun], view: View
    ) -> TrialConfig | None:
        measured = [(obs.config, obs.measurement) for obs in view.history if obs.measurement is not None]
        speed = UNCALIBRATED
        if measured or related:
            # Fitted on the pool's own predictions, which may have been shuffled.
            rows = pool.parts[pool.rows([config for config, _ in measured])]
            parts = [dict(zip(PARTS, map(float, row), strict=True)) for row in rows]
            spread = CPU_SPREAD if table.cluster.device == "cpu" else GPU_SPREAD
            seconds = [measurement.step_time_s for _, measurement in measured]
            elsewhere = [run for run in related if run.is_timed]
            parts += [dict(run.parts_by_host[speed.host]) for run in elsewhere]
            speed = fit_speed(parts, [*seconds, *(run.seconds for run in elsewhere)], spread)
        knowledge = Knowledge(table.limit_gib, speed, view.memory, related)
        return _proposed(view, table, seed, GuidedSampler(pool, knowledge))


def _disturb(pool: Pool, predictions: Predictions) -> None:
    """Give each candidate the prediction of another."""
    if predictions == "shuffled":
        pool.parts = pool.parts[np.random.default_rng(0).permutation(len(pool.parts))]
    elif predictions == "reversed":
        order = np.argsort(pool.parts.sum(axis=1), kind="stable")
        turned = np.empty_like(pool.parts)
        turned[order] = pool.parts[order[::-1]]
        pool.parts = turned


SAMPLERS: dict[str, Entry] = {
    "guided": Entry(Guided()),
    "guided_shuffled": Entry(Guided("shuffled")),
    "guided_reversed": Entry(Guided("reversed")),
    "random": Entry(_random),
    "tpe": Entry(partial(_of_optuna, optuna_samplers.tpe)),
    "gp": Entry(partial(_of_optuna, optuna_samplers.gp), gp_needs.GP_PACKAGES, "pip install --group benchmarks"),
    **{
        f"deepspeed_{name}": Entry(
            partial(DeepSpeedAsk, name), ("deepspeed", *needs), "pip install -e '.[worker]' --group benchmarks"
        )
        for name, needs in TUNERS.items()
    },
}
"""Samplers by the names that `--sampler` and the JSON use. The disturbed ones see the prediction of another
configuration."""
DEFAULTS = tuple(name for name in SAMPLERS if not name.startswith("guided_"))


def chosen(names: list[str]) -> dict[str, Entry]:
    """The samplers of these names; without names, all that are installed.

    Raises:
        InputError: no such sampler, or one whose package is missing.
    """
    for name in names:
        if name not in SAMPLERS:
            raise InputError(f"--sampler ({name}) is unknown; use one of {', '.join(SAMPLERS)}")
        if SAMPLERS[name].missing:
            lacking = ", ".join(SAMPLERS[name].missing)
            raise InputError(f"--sampler ({name}) needs {lacking}, not installed; {SAMPLERS[name].remedy}")
    return {name: SAMPLERS[name] for name in names or DEFAULTS if not SAMPLERS[name].missing}
