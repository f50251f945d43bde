"""What a knob of the search is: what values it takes, and whether a user may name values the search would not try.

The knobs of one backend, their conditions and candidate values are in its module; docs/reference/search-space.md explains them.
"""

import math
from dataclasses import dataclass
from typing import Literal, assert_never

from shardtune.api_schemas.training.search_space import KnobValue

Kind = Literal["bool", "int", "number", "word", "group"]


@dataclass(frozen=True)
class Knob:
    """One dimension of the space."""

    kind: Kind
    """`group` is a boolean or an integer, as `reshard_after_forward` is."""
    words: tuple[str, ...] = ()
    minimum: float = 1
    """Of numbers."""
    maximum: float = math.inf
    step: int = 1
    """Integers must be multiples of it."""
    open: bool = False
    """A user's own values replace the search's. Else they only narrow them: a divisor stays a divisor."""
    lightest: KnobValue | Literal["min", "max"] | None = None
    """The value that holds least memory; None where that depends on the rest."""
    rising: tuple[KnobValue, ...] = ()
    """Values from the one that holds least memory to the one that holds most, where that order always holds."""
    rises: bool = False
    """Of numbers: a larger one holds at least as much memory."""
    places: bool = False
    """It decides where model states or samples lie: memory of two configurations can only be compared where it is equal."""

    def accepts(self, value: KnobValue) -> bool:
        """Whether the value has the right type and range."""
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
        """What `accepts` accepts, in words."""
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
"""A configuration as a table: knob by name, `backend` included."""

COMMON: dict[str, Knob] = {
    "context_parallel": Knob("int", places=True),
    "micro_batch": Knob("int", rises=True),
    "activation_checkpointing": Knob("word", ("none", "selective", "full"), rising=("full", "selective", "none")),
    "checkpoint_every": Knob("int", lightest="min", rises=True),
    "compile": Knob("bool", lightest=False),
    "malloc": Knob("word", ("default", "keep"), lightest="default"),
    "threads": Knob("int", minimum=0, maximum=1024, open=True, lightest=0),
    "expandable_segments": Knob("bool", open=True, lightest=False),
    "max_connections": Knob("int", minimum=0, maximum=32, open=True, lightest=0),
    "numa_binding": Knob("word", ("none", "node", "exclusive"), lightest="none"),
}
"""Of every backend."""

# Of several backends, with one meaning.
GRAD_SYNC = Knob("word", ("every", "reduce_scatter", "last"), rising=("every", "reduce_scatter", "last"))
DP_SHARD = Knob("int", places=True)
DP_REPLICATE = Knob("int")
CPU_OFFLOAD = Knob("bool", places=True)
