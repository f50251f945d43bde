"""Enumeration of a search space, depth first: each drawing repeats the first choices of the previous one, and then makes
the next choice that is left."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.define_by_run import DefineByRun, DrawnBackend
from shardtune.tuner.search.space.legal_values import Flat
from shardtune.tuner.search.space.questions import Question

Narrow = Callable[[Question], tuple[KnobValue, ...]]
"""Function that takes a knob with its candidate values and returns the values to enumerate."""


@dataclass
class _Choice:
    """Choice of one knob's value on the way to a configuration: the values to enumerate, and the index of the current
    value."""

    values: tuple[KnobValue, ...]
    index: int = 0
    start: DefineByRun | None = None
    """State of the configuration before the step that made this choice; enumeration resumes here with the next
    value."""


class DepthFirst:
    """Enumeration of all configurations. Each configuration repeats the previous one's choices up to the last one that
    has values left, and chooses anew from there."""

    def __init__(self, drawing: DefineByRun, narrow: Narrow | None) -> None:
        """Begin the enumeration without any choice made. `narrow` selects which of a knob's candidate values to
        enumerate; if None, all are."""
        self.has_next = True
        """Whether a configuration is left."""
        self._drawing, self._narrow = drawing, narrow
        self._path: list[_Choice] = []
        self._depth = 0

    def draw_next(self, backends: Mapping[str, DrawnBackend]) -> Flat:
        """Return the knob values of the next configuration.

        Raises:
            NoLegalValue: the choices made leave a knob without a legal value. Call again for the next configuration.
        """
        start = self._path[-1].start if self._path else None
        self._drawing = (start or self._drawing).resume(self._answer)
        self._drawing.keeps_start, self._drawing.asks_all = True, False
        # Choices of earlier steps are in the drawing already.
        self._depth = next((depth for depth, choice in enumerate(self._path) if choice.start is start), 0)
        try:
            return self._drawing.run(backends)
        finally:
            self._leave()

    def _answer(self, question: Question) -> KnobValue:
        if self._depth == len(self._path):
            values = self._narrow(question) if self._narrow else question.values
            self._path.append(_Choice(values))
        choice = self._path[self._depth]
        # The step was begun anew: all of its choices belong to the same start.
        choice.start = self._drawing.start
        self._depth += 1
        return choice.values[choice.index]

    def _leave(self) -> None:
        """Move on to the next configuration: advance the last choice that has values left, and drop the choices after
        it."""
        path = self._path
        while path and path[-1].index + 1 == len(path[-1].values):
            path.pop()
        if path:
            path[-1].index += 1
        self.has_next = bool(path)
