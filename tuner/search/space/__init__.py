"""Conditional search space of a study: knobs, candidate values, the conditions under which a knob has an effect, and
the user's limits."""

from shardtune.tuner.search.space.space import Choice, Chooser, Space, build

__all__ = ["Choice", "Chooser", "Space", "build"]
