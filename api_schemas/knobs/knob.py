"""Declaration of one knob (tuned parameter)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from shardtune.api_schemas.knobs.condition import When, value_text
from shardtune.api_schemas.knobs.consumers import Consumer, Statement
from shardtune.api_schemas.training.search_space import KnobValue

Kind = Literal["bool", "int", "number", "word", "group"]
ALWAYS = When()


@dataclass(frozen=True, eq=False, kw_only=True)
class Knob:
    """Knob, which is one dimension of the search space. It is declared as metadata of its pydantic field, and
    `knobs_of` adds what the field itself says: kind, legal values and default."""

    help: str
    """Explanation of the knob in one sentence of plain text, shown next to its name."""
    name: str = ""
    """Display name of the knob. If empty, it is derived from the knob's name in the search space."""
    value_names: Mapping[str, str] = field(default_factory=dict)
    """Texts to display for values of the knob that do not explain themselves, by the value as text."""
    unit: str = ""
    """Unit of the knob's numbers, shown after the number. Empty for numbers without a unit."""
    phrases: Mapping[str, str] = field(default_factory=dict)
    """Words for a value of the knob in the one-line description of a configuration, by the value as text. The key `*`
    stands for all other values except the default, and `{value}` in the words is replaced by the value."""

    kind: Kind = "word"
    """Type of the knob's values. `group` means a boolean or an integer, as `reshard_after_forward` has."""
    words: tuple[str, ...] = ()
    """Values that a knob of kind `word` may have. If empty, they are the literals in the type of its field."""
    minimum: float | None = None
    """Smallest legal number. If None, it is the minimum of the knob's field, or 1 if the field has none."""
    maximum: float | None = None
    """Largest legal number. If None, it is the maximum of the knob's field; without one, there is no limit."""
    step: int = 1
    """Number of which every integer value of the knob must be a multiple."""
    default: Any = None
    """Default value of the knob, which is the default of its field; `knobs_of` fills it in."""

    tries: tuple[KnobValue, ...] = ()
    """Values of the knob that the search tries in any study. If empty, a function computes them for each study."""
    when: When = ALWAYS
    """Condition under which the knob has an effect. If it does not hold, the knob keeps its default, or the value to
    which the user has fixed it."""
    within: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)
    """Values that other knobs of the same backend must have for this knob to exist, by the names of the other knobs.
    Otherwise the search does not draw it, and exports do not write it."""
    accepts_own_values: bool = False
    """Whether a user's values for the knob replace those that the search would try. If False, they only select among
    these, which ensures for example that a divisor remains a divisor."""

    lightest: KnobValue | Literal["min", "max"] | None = None
    """Value of the knob with which training uses the least memory; `min` and `max` stand for the smallest and largest
    value. None if that depends on other knobs."""
    memory_order: tuple[KnobValue, ...] = ()
    """Values of the knob in the order of the memory that they use, least first. Empty if there is no order that always
    holds."""
    grows_memory: bool = False
    """Whether a larger number never uses less memory than a smaller one."""
    places_states: bool = False
    """Whether the knob decides which rank holds which model states or samples. The memory of two configurations can be
    compared only if they agree in this knob."""
    makes_twins: bool = False
    """Whether two configurations that differ only in this knob count as one candidate of the search if the predictor
    predicts the same step for both. True for knobs that only divide or copy the same work. False for knobs whose effect
    the predictor does not know."""
    without_term: str = ""
    """Reason why predictions do not depend on the knob; empty if they do."""

    variable: str = ""
    """Environment variable that is set to the value of the knob on all ranks, in trials and in every export, unless the
    value is the default. A variable of another form is set by code in `rank_environment`."""
    exports: Mapping[Consumer, Statement] = field(default_factory=dict)
    """Statement how to express the knob, for each program that reads an export and supports the knob's backend. A knob
    that is an environment variable (`variable`) needs no statement."""

    values_text: str = ""
    """Values of the knob as the reference page prints them (Markdown). If empty, the page prints the values of
    `tries`."""
    when_text: str = ""
    """Condition of the knob as the reference page prints it (Markdown). If empty, the page prints `when` and
    `within`."""
    upstream: str = ""
    """Name of the setting in the library that implements it (Markdown). If empty, it is the name of the knob's
    field."""

    knob: str = ""
    """Name of the knob in the search space. If empty, it is the name of the knob's field."""
    parts: Mapping[str, "Knob"] = field(default_factory=dict)
    """Knobs inside a nested value, by the field of that value. Each gets a name made of this knob's name and the
    field."""

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
        """Return a description of the values that the knob accepts, for error messages."""
        match self.kind:
            case "bool":
                return "true or false"
            case "group":
                return "true, false or an integer above 1"
            case "word":
                return "one of " + ", ".join(self.words)
            case "int" | "number":
                kind = "a number" if self.kind == "number" else "an even integer" if self.step == 2 else "an integer"
                most = "" if self._highest == math.inf else f", at most {self._highest:g}"
                return f"{kind} of at least {self._lowest:g}{most}"
            case _:
                assert_never(self.kind)

    def phrase(self, value: KnobValue) -> str:
        """Return the words for a value in the one-line description of a configuration. They are empty for a value that
        need not be mentioned."""
        if not self.phrases:
            return ""
        words = self.phrases.get(value_text(value), "" if value == self.default else self.phrases.get("*", ""))
        return words.format(value=value)

    @property
    def _lowest(self) -> float:
        return 1 if self.minimum is None else self.minimum

    @property
    def _highest(self) -> float:
        return math.inf if self.maximum is None else self.maximum

    def _in_range(self, value: float) -> bool:
        return self._lowest <= value <= self._highest
