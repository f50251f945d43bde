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
    """Knob: one dimension of the search space, declared as metadata of its pydantic field. `knobs_of` fills in what the
    field itself says: kind, legal values and default."""

    help: str
    """Explanation of the knob in one sentence of plain text, shown beside its name."""
    name: str = ""
    """Display name; empty: derived from the knob's own name."""
    value_names: Mapping[str, str] = field(default_factory=dict)
    """Display texts of values that are not self-explanatory, by value as text."""
    phrases: Mapping[str, str] = field(default_factory=dict)
    """Words in a configuration's one-line description, by value as text; `*` stands for every other value than the
    default, and `{value}` in the words for the value."""

    kind: Kind = "word"
    """Type of the knob's values. `group` is a boolean or an integer, as `reshard_after_forward` is."""
    words: tuple[str, ...] = ()
    """Words that a knob of kind `word` may have as its value; empty: the literals in the field's type."""
    minimum: float | None = None
    """Smallest legal number; None: the minimum of the knob's field, or 1 if the field has none."""
    maximum: float | None = None
    """Largest legal number; None: the maximum of the knob's field, if it has one."""
    step: int = 1
    """Number that every integer value must be a multiple of."""
    default: Any = None
    """Default value of the knob's field; filled in by `knobs_of`."""

    tries: tuple[KnobValue, ...] = ()
    """Candidate values that the search tries in any study; empty: a function of the study computes them."""
    when: When = ALWAYS
    """Condition under which the knob has an effect; elsewhere it has its default, or the user's pinned value."""
    within: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)
    """Values that other knobs of the backend must have, by those knobs' names. With any other value this knob does not
    exist: it is neither drawn nor written for the backend's library."""
    accepts_own_values: bool = False
    """Whether a user's own values replace the search's candidates; otherwise they only select among the candidates, so
    that a divisor remains a divisor."""

    lightest: KnobValue | Literal["min", "max"] | None = None
    """Value that uses the least memory; None where that depends on other knobs."""
    memory_order: tuple[KnobValue, ...] = ()
    """Values from least to most memory, where that order always holds."""
    grows_memory: bool = False
    """Whether a larger number uses at least as much memory."""
    places_states: bool = False
    """Whether the knob decides where model states or samples are placed: memory of two configurations is comparable
    only where the knob is equal."""
    makes_twins: bool = False
    """Whether configurations that differ only in this knob count as one candidate if the predictor predicts the same
    step for them, because the knob only divides or copies the same work. False for a knob whose effect the predictor
    does not know."""
    without_term: str = ""
    """Reason why no prediction changes with the knob; empty if predictions depend on it."""

    variable: str = ""
    """Environment variable of the ranks that takes the knob's value, in trials and in every export, unless the value is
    the default. Code in `rank_environment` sets variables of another form."""
    exports: Mapping[Consumer, Statement] = field(default_factory=dict)
    """Statement about the knob for each consumer (program of an export) that knows the knob's backend. A knob that is
    an environment variable needs none."""

    values_text: str = ""
    """Candidate values as the reference page prints them (Markdown); empty: the page prints the values of `tries`."""
    when_text: str = ""
    """Condition as the reference page prints it (Markdown); empty: the page prints `when` and `within`."""
    upstream: str = ""
    """Library's own name of the knob (Markdown); empty: the field's name."""

    knob: str = ""
    """Name in the search space; empty: the field's name."""
    parts: Mapping[str, "Knob"] = field(default_factory=dict)
    """Knobs of the fields of a nested value, by field; each is named after this knob and its field."""

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
                most = "" if self._highest == math.inf else f", at most {self._highest:g}"
                return f"{kind} of at least {self._lowest:g}{most}"
            case _:
                assert_never(self.kind)

    def phrase(self, value: KnobValue) -> str:
        """Words for a value in a configuration's one-line description; empty for a value that goes without saying."""
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
