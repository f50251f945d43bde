"""The conditional search space of a study: knobs, candidate values, conditions, the user's limits."""

from shardtune.tuner.search.space.space import Chooser, Space, build

__all__ = ["Chooser", "Space", "build"]
