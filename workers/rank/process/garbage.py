"""Collection of Python's garbage after a number of steps, at the same step on every rank."""

import gc

_GENERATION = 1
"""Oldest generation that is collected, the same as in torchtitan. A full collection would also traverse all long-lived
objects."""


class StepwiseCollection:
    """Garbage collection after every `every` steps, instead of at moments that Python chooses. If `every` is 0, Python
    chooses."""

    def __init__(self, every: int) -> None:
        self._every, self._steps = every, 0

    def begin(self) -> None:
        """Turn off Python's automatic garbage collection for the rest of the process."""
        if self._every:
            gc.disable()

    def end_step(self) -> None:
        """Count a step, and collect garbage after every `every` steps."""
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            gc.collect(_GENERATION)
