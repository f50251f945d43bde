"""Legal values of each knob, and whether a user may name values that the search would not try.

The knobs of one backend, their conditions and candidate values are in the backend's module;
docs/reference/search-space.md explains them.
"""

import math
from dataclasses import dataclass
from typing import Literal, assert_never

from shardtune.api_schemas.training.search_space import KnobValue

Kind = Literal["bool", "int", "number", "word", "group"]


@dataclass(frozen=True)
class Knob:
    """Knob: one dimension of the search space, such as the micro batch."""

    kind: Kind
    """Type of a knob's values. `group` is a boolean or an integer, as `reshard_after_forward` is."""
    words: tuple[str, ...] = ()
    """Words that a knob of kind `word` may have as its value."""
    minimum: float = 1
    """Smallest legal number of a knob."""
    maximum: float = math.inf
    step: int = 1
    """Number that every integer value of a knob must be a multiple of."""
    accepts_own_values: bool = False
    """Whether a user's own values replace the search's candidates; otherwise they only select among the candidates, so
    that a divisor remains a divisor."""
    lightest: KnobValue | Literal["min", "max"] | None = None
    """Value of the knob that uses the least memory; None where that depends on other knobs."""
    memory_order: tuple[KnobValue, ...] = ()
    """Values of the knob from least to most memory, where that order always holds."""
    grows_memory: bool = False
    """Whether a larger number for this knob uses at least as much memory."""
    places_states: bool = False
    """Whether the knob decides where model states or samples are placed: memory of two configurations is comparable
    only where the knob is equal."""
    makes_twins: bool = False
    """Whether configurations that differ in this knob alone count as one candidate where the predictor gives them the
    same step: the knob only divides or copies the same work. False for a knob whose effect the predictor does not
    know."""

    def accepts(self, value: KnobValue) -> bool:
        """Whether the value has the type and range that the knob accepts."""
        is_bool, is_int = isinstance(value, bool), isinstance(value, int) and not isinstance(value, bool)
        match self.kind:
            case "bool":
                return is_bool
            case "int":
                return is_int and self._in_range(float(value)) and int(value) % self.step == 0
            case "number":
                return isinstance(value, int | float) and not is_bool and self._in_range(float(value))
            case "group":
                return is_bool or (is_int and int(value) > 1)
            case "word":
                return value in self.words
            case _:
                assert_never(self.kind)

    def expected(self) -> str:
        """Description of the values that the knob accepts, for error messages."""
        match self.kind:
            case "bool":
                return "true or false"
            case "group":
                return "true, false or an integer above 1"
            case "word":
                return "one of " + ", ".join(self.words)
            case "int" | "number":
                kind = "a number" if self.kind == "number" else "an even integer" if self.step == 2 else "an integer"
                return f"{kind} of at least {self.minimum:g}" + (
                    f", at most {self.maximum:g}" if self.maximum < math.inf else ""
                )
            case _:
                assert_never(self.kind)

    def _in_range(self, value: float) -> bool:
        return self.minimum <= value <= self.maximum


Flat = dict[str, KnobValue]
"""Configuration as a flat table: value by knob name, `backend` included."""

COMMON: dict[str, Knob] = {
    "context_parallel": Knob("int", places_states=True),
    "micro_batch": Knob("int", grows_memory=True),
    "activation_checkpointing": Knob("word", ("none", "selective", "full"), memory_order=("full", "selective", "none")),
    "checkpoint_every": Knob("int", lightest="min", grows_memory=True),
    "loss": Knob("word", ("full", "chunked")),
    "loss_chunk": Knob("int", minimum=16, maximum=1 << 20, accepts_own_values=True, lightest="min"),
    "compile": Knob("bool", lightest=False),
    "malloc": Knob("word", ("default", "keep"), lightest="default"),
    "threads": Knob("int", minimum=0, maximum=1024, accepts_own_values=True, lightest=0),
    "expandable_segments": Knob("bool", accepts_own_values=True, lightest=False),
    "max_connections": Knob("int", minimum=0, maximum=32, accepts_own_values=True, lightest=0),
    "numa_binding": Knob("word", ("none", "node", "exclusive"), lightest="none"),
}
"""Knobs that every backend has, by name."""

# Knobs that several backends share, with one meaning.
GRAD_SYNC = Knob("word", ("every", "reduce_scatter", "last"), memory_order=("every", "reduce_scatter", "last"))
DP_SHARD = Knob("int", places_states=True)
DP_REPLICATE = Knob("int")
CPU_OFFLOAD = Knob("bool", places_states=True)
