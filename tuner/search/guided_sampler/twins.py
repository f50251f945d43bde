"""Twins: configurations that differ only in knobs that cannot matter at this size, such as a bucket larger than the
model.

Each knob declares whether it may make twins (`Knob.makes_twins`). Whether two configurations are twins in one study is
the predictor's answer.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.guided_sampler.encoding import Array, Rows
from shardtune.tuner.search.guided_sampler.pool import Pool, sample_near
from shardtune.tuner.search.space import choices
from shardtune.tuner.search.space.backends.registry import BACKENDS, KNOBS
from shardtune.tuner.search.stopping import MIN_GAIN


@dataclass(frozen=True)
class Twins:
    """Twins: configurations that differ only in knobs without a predicted effect, such as a bucket larger than the
    model. The search counts them as one candidate."""

    pool: Pool
    seconds: Callable[[Rows], Array]
    """Function that returns the predicted seconds of each part of a step, for rows of the pool."""
    sure_gib: float
    """Predicted peak memory (GiB) up to which a configuration surely fits."""

    def with_twin_among(self, rows: Rows, tried: Rows) -> Collection[int]:
        """Rows of the pool among `rows` that have a twin (an equivalent configuration) among the rows that were tried."""
        families = self.pool.families
        related = rows[np.isin(families[rows], families[tried])]
        if not len(related):
            return frozenset()
        twins = [related[self._are_twins(related, int(row))] for row in np.unique(tried)]
        return frozenset(int(row) for row in np.concatenate(twins))

    def with_defaults(self, row: int, taken: Collection[str]) -> int:
        """Find the twin of `row` (an equivalent configuration) with the most knobs at their documented defaults, and
        return its row. `taken` are content keys (hashes) of configurations that may not be proposed."""
        pool, origin = self.pool, row
        answers, defaults = self._answers(row)
        for param, value in defaults.items():
            near = sample_near(pool.space, answers | {param: value})
            if near is None or pool.space.key(near) in taken:
                continue
            (candidate,) = pool.rows([near])
            if self._are_twins(np.array([candidate], dtype=np.intp), origin)[0]:
                row, answers = candidate, answers | {param: value}
        return row

    def _answers(self, row: int) -> tuple[dict[str, KnobValue], dict[str, KnobValue]]:
        """Values of the sampler's parameters for a row of the pool, and, for each knob that may have no effect, the
        candidate value nearest to the documented default."""
        config = self.pool.config(row)
        fields = BACKENDS[config.backend].config.model_fields
        try:
            answers = self.pool.space.sampler_answers(config)
        except ValueError:
            return {}, {}
        defaults = {}
        for question, _ in answers:
            if question.knob in KNOBS and KNOBS[question.knob].makes_twins:
                index = choices.nearest_index(fields[question.knob].default, question.values)
                defaults[question.param] = question.values[index or 0]
        return {question.param: value for question, value in answers}, defaults

    def _are_twins(self, rows: Rows, row: int) -> Array:
        """Whether each of `rows` is a twin of `row` (differs only in knobs without a predicted effect), or `row`
        itself."""
        pool = self.pool
        seconds, own = self.seconds(rows), self.seconds(np.array([row], dtype=np.intp))[0]
        # By parts of the step, whose rates are known less exactly than that they differ.
        is_same_step = np.abs(seconds - own).sum(axis=1) <= MIN_GAIN * own.sum()
        peaks, own_peak = pool.peak_gib[rows], float(pool.peak_gib[row])
        is_same_memory = np.abs(np.log(peaks / own_peak)) <= math.log1p(MIN_GAIN)
        surely_fit = (peaks <= self.sure_gib) & (own_peak <= self.sure_gib)
        return np.asarray((pool.families[rows] == pool.families[row]) & is_same_step & (is_same_memory | surely_fit))


def before_second_twins(order: Sequence[int], untried: Sequence[int], second_twins: Collection[int]) -> Iterator[int]:
    """Yield candidates by falling utility, but try each backend once before a second twin: a candidate that is
    equivalent to one already tried.

    `order`: candidates by falling utility. `untried`: candidates of backends that no trial has used. `second_twins`:
    candidates that are equivalent to a tried one.
    """
    # Twins are only postponed, because the predictor may be wrong about what cannot matter: on one recorded table the
    # fastest was a second twin, and a search that put twins last found it after 212 trials instead of 7.
    first_twin = next((place for place, index in enumerate(order) if index in second_twins), len(order))
    yield from order[:first_twin]
    yield from untried
    yield from order[first_twin:]


def first_of_backends(order: Rows, backends: Sequence[str], tried: Collection[str]) -> list[int]:
    """First row for each backend that no trial has used; `order` gives the rows in the order in which they are
    preferred."""
    first_rows = {backends[row]: int(row) for row in order[::-1]}
    return [row for backend, row in first_rows.items() if backend not in tried]
