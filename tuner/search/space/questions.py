"""Questions that the drawing of a configuration asks: which value a knob shall have."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.legal_values import COMMON


class Question(NamedTuple):
    """Knob (tunable parameter) whose value the sampler must choose, with its candidate values."""

    knob: str
    param: str
    """Parameter name for the sampler; the same name always has the same candidate values."""
    values: tuple[KnobValue, ...]


Answer = Callable[[Question], KnobValue]


class NoLegalValue(Exception):
    """Error raised where the user's limits leave a knob without a legal value, given the knobs drawn before."""

    def __init__(self, knob: str, candidates: tuple[KnobValue, ...], why_not: str | None = None) -> None:
        super().__init__(knob)
        self.knob, self.candidates, self.why_not = knob, candidates, why_not


# A walk names some twenty parameters, and a search makes thousands of walks.
@lru_cache(maxsize=4096)
def param_name(knob: str, backend: KnobValue | None, variant: str) -> str:
    """Name of a sampler's parameter for a knob. A sampler needs the same candidates whenever it sees a name, so a knob
    with several sets of candidates has a name for each."""
    name = knob if knob == "backend" or knob in COMMON else f"{backend}.{knob}"
    return f"{name}@{variant}" if variant else name
