"""A study's space reduced to what a table has measured: the same walk, but each answer leads to a measured configuration."""

from collections.abc import Iterator

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space import Chooser, Space, choices
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.depth_first import Narrow
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.legal_values import Flat
from shardtune.tuner.search.space.limits import KnobLimits
from shardtune.tuner.search.space.questions import Question


class TableSpace(Space):
    """Space of the measured configurations, for every sampler alike: a draw that was not measured becomes the nearest
    that was, one knob after the other."""

    def __init__(self, domains: Domains, limits: KnobLimits, measured: tuple[TrialConfig, ...]) -> None:
        super().__init__(domains, limits)
        self.measured = measured
        self._places = [self._place(config) for config in measured]

    def sample(self, chooser: Chooser, start: DefineByRun | None = None) -> TrialConfig | None:
        """Draw a measured configuration, always from the beginning."""
        candidate_indices = list(range(len(self.measured)))

        def answer(question: Question) -> KnobValue:
            nonlocal candidate_indices
            requested_value = (
                question.values[0] if len(question.values) == 1 else chooser(question.param, question.values)
            )
            there = [self._places[index].get(question.knob) for index in candidate_indices]
            known_values = tuple(value for value in question.values if choices.index_of(value, tuple(v for v in there if v is not None)) is not None)  # fmt: skip
            if not known_values:
                return requested_value
            nearest = choices.nearest_index(requested_value, known_values)
            chosen = known_values[0 if nearest is None else nearest]
            candidate_indices = [
                index
                for index, value in zip(candidate_indices, there, strict=True)
                if choices.index_of(value, (chosen,)) == 0
            ]
            return chosen

        drawn = self._walk(answer)
        return self.measured[candidate_indices[0]] if candidate_indices else self.unflatten(drawn)

    def _place(self, config: TrialConfig) -> Flat:
        """Position at which draws find a value: a documented default's size that the search would not try counts as the
        nearest."""
        try:
            return {question.knob: value for question, value in self.sampler_answers(config)}
        except ValueError:
            return {}

    def enumerate(self, narrow: Narrow | None = None) -> Iterator[TrialConfig]:
        """Every measured configuration, in the table's order; never narrowed."""
        yield from self.measured

    def size(self, at_most: int = 100_000) -> int:
        """Number of measured configurations, up to a bound."""
        return min(len(self.measured), at_most)
