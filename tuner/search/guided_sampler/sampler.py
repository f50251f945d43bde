"""Guided sampler: proposes the candidate with the greatest expected gain per second, from predictions and this study's
measurements."""

from collections.abc import Iterator
from itertools import islice

from shardtune.tuner.search.guided_sampler.candidate_scores import CandidateScores
from shardtune.tuner.search.guided_sampler.knowledge import Knowledge
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.samplers.draw import Draw, SearchView

_MOST_DRAWS = 64


class GuidedSampler:
    """Guided sampler of one study. `knowledge` holds what earlier runs on this hardware measured."""

    def __init__(self, pool: Pool, knowledge: Knowledge) -> None:
        self._pool, self._knowledge = pool, knowledge

    def __call__(self, view: SearchView) -> Iterator[Draw | None]:
        """Yield the best candidates as proposals, the most promising first."""
        scores = CandidateScores(self._pool, self._knowledge, view)
        rows = scores.candidates
        if not len(rows):
            return
        for index in islice(scores.proposals(), _MOST_DRAWS):
            row = int(rows[index])
            # Afterwards twins differ, too: so trials can contradict the prediction that a knob does not matter.
            if scores.untried:
                row = scores.twins.with_defaults(row, view.taken)
            yield Draw(self._pool.config(row), scores.reason(index, row))
