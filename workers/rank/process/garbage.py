"""Collection of Python's garbage after a number of steps, at the same step on every rank."""

import gc

_GENERATION = 1
"""Oldest generation that is collected, as torchtitan does: a full collection would traverse all long-lived objects."""


class StepwiseCollection:
    """Collection of garbage every so many steps instead of whenever Python wants; without a number Python decides."""

    def __init__(self, every: int) -> None:
        self._every, self._steps = every, 0

    def begin(self) -> None:
        """Turn off automatic collection, for the rest of the process."""
        if self._every:
            gc.disable()

    def end_step(self) -> None:
        """Count a step, and collect if it is one after which garbage is collected."""
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            gc.collect(_GENERATION)
