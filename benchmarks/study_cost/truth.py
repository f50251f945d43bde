"""True speed and memory of every configuration in one simulated study: the prediction times errors drawn for the study.

The predictor's errors are those of docs/measurements/predictor.md: step times of published GPU runs are 10 % off in the
median and 4.4 % after calibration, peaks 3.3 %. A median of |error| is 0.6745 standard deviations.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.prediction.calibration import PARTS
from shardtune.tuner.search.guided_sampler.pool import Pool

_MEDIAN = 0.6745


@dataclass(frozen=True)
class Errors:
    """Standard deviations of log(true / predicted)."""

    level: float = math.sqrt((0.10 / _MEDIAN) ** 2 - (0.044 / _MEDIAN) ** 2)
    """Error that all configurations of a machine and model share; calibration removes it."""
    backend: float = 0.044 / _MEDIAN / math.sqrt(2)
    knobs: float = 0.044 / _MEDIAN / math.sqrt(2)
    """Error of one configuration; twins, which differ in no knob that changes the work, share it."""
    peak: float = 0.033 / _MEDIAN
    extension: float = 0.005
    """Error of a step time that is extended from short steps, without noise (docs/measurements/short-steps.md)."""
    shift: float = 0.0
    """Known log(true / predicted) of all step times, where a real study has shown it."""


@dataclass(frozen=True)
class Answer:
    """True figures of one configuration."""

    step_s: float
    once_s: float
    """Seconds of the step that do not grow with its micro batches: what happens once a step, and filling and draining a
    pipeline."""
    peak_gib: float
    extension: float = 1.0
    """Step time extended from short steps over the whole step's, without noise."""

    def short_s(self, micro_batches: int, whole: int) -> float:
        """Seconds of a step with fewer micro batches than the whole step's."""
        per_micro_batch = (self.step_s - self.once_s) / whole
        return self.extension * (self.once_s + micro_batches * per_micro_batch)


class Truth:
    """True figures of a study's configurations."""

    def __init__(self, pool: Pool, limit_gib: float, seed: str, errors: Errors, global_batch: int, ranks: int) -> None:
        """Draw the errors of one study with this seed."""
        self._pool, self._limit_gib, self._seed, self._errors = pool, limit_gib, seed, errors
        self._global_batch, self._ranks = global_batch, ranks

    def of(self, config: TrialConfig) -> Answer:
        """True figures of a configuration."""
        (row,) = self._pool.rows([config])
        family = int(self._pool.families[row])
        log_error = (
            self._errors.shift
            + self._draw("level", self._errors.level)
            + self._draw(f"backend {self._pool.backends[row]}", self._errors.backend)
            + self._draw(f"family {family}", self._errors.knobs)
        )
        parts, error = self._pool.parts[row], math.exp(log_error)
        once_s = float(parts[PARTS.index("step")] + parts[PARTS.index("offload")])
        stages = config.strategy.stages
        if stages > 1:
            # The predicted step has the idle time of stages - 1 micro batches.
            once_s += (
                (float(parts.sum()) - once_s)
                * (stages - 1)
                / (config.accumulation(self._global_batch, self._ranks) + stages - 1)
            )
        return Answer(
            step_s=float(parts.sum()) * error,
            once_s=once_s * error,
            peak_gib=float(self._pool.peak_gib[row]) * math.exp(self._draw(f"peak {family}", self._errors.peak)),
            extension=math.exp(self._draw(f"extension {family}", self._errors.extension)),
        )

    @cached_property
    def best_step_s(self) -> float:
        """Shortest true step among the candidates of the space that fit."""
        pool, count = self._pool, self._pool.candidate_count
        families = pool.families[:count]
        used = np.unique(families)
        step, peak = self._by_code("family", used, self._errors.knobs), self._by_code("peak", used, self._errors.peak)
        backends = {name: self._draw(f"backend {name}", self._errors.backend) for name in set(pool.backends[:count])}
        log_error = np.array([step[int(code)] for code in families]) + np.array(
            [backends[name] for name in pool.backends[:count]]
        )
        peaks = pool.peak_gib[:count] * np.exp([peak[int(code)] for code in families])
        steps = pool.parts[:count].sum(axis=1) * np.exp(
            log_error + self._errors.shift + self._draw("level", self._errors.level)
        )
        return float(steps[peaks <= self._limit_gib].min(initial=math.inf))

    def _by_code(
        self, name: str, codes: np.ndarray[tuple[int], np.dtype[np.intp]], sigma: float
    ) -> Mapping[int, float]:
        return {int(code): self._draw(f"{name} {int(code)}", sigma) for code in codes}

    def _draw(self, name: str, sigma: float) -> float:
        return random.Random(f"{self._seed}:{name}").gauss(0, sigma)
