"""Condition under which a knob has an effect, as data: the search evaluates it, and the reference puts it into words."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardtune.api_schemas.training.search_space import KnobValue


@dataclass(frozen=True)
class When:
    """Condition under which the search tries values of a knob other than its default. All parts of the condition must
    hold."""

    on_gpu: bool | None = None
    """Device on which the knob has an effect: only GPUs (True), only CPU ranks (False), or both (None)."""
    has_peers: bool = False
    """Whether the knob has an effect only if there is more than one rank."""
    accumulates: bool | None = None
    """Whether the knob needs several micro batches per step (True) or exactly one (False). If None, their number does
    not matter."""
    is_named: bool = False
    """Whether the search tries the knob only if the user's search space names it."""
    or_named: bool = False
    """Whether it suffices that the user's search space names the knob: the other parts of the condition then need not
    hold."""
    others: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)
    """Values that other knobs must have for this knob to have an effect, by the name of the other knob. The search
    draws the other knobs first."""
    above: Mapping[str, int] = field(default_factory=dict)
    """Numbers that other knobs must exceed for this knob to have an effect, by the name of the other knob. The search
    draws the other knobs first."""

    def holds(
        self, *, on_gpu: bool, has_peers: bool, accumulates: bool, is_named: bool, drawn: Mapping[str, KnobValue]
    ) -> bool:
        """Whether the condition holds for a study's ranks, the knobs that the user's search space names, and the values
        drawn so far."""
        decided = self.decided(on_gpu=on_gpu, has_peers=has_peers, accumulates=accumulates, is_named=is_named)
        return self.holds_for(drawn) if decided is None else decided

    def decided(self, *, on_gpu: bool, has_peers: bool, accumulates: bool, is_named: bool) -> bool | None:
        """Whether the condition holds whatever values other knobs have; None if their values decide."""
        if self.or_named and is_named:
            return True
        # Most conditions end here, at the device or the user's limits.
        if (
            (self.is_named and not is_named)
            or self.on_gpu not in (None, on_gpu)
            or (self.has_peers and not has_peers)
            or self.accumulates not in (None, accumulates)
        ):
            return False
        return None if self.others or self.above else True

    def holds_for(self, drawn: Mapping[str, KnobValue]) -> bool:
        """Whether the values of other knobs, drawn before, fulfil the condition."""
        for knob, values in self.others.items():
            if drawn.get(knob) not in values:
                return False
        return not self.above or all(int(drawn.get(knob, 0)) > number for knob, number in self.above.items())

    def words(self) -> str:
        """Description of the condition for the reference page of the search space; empty if it always holds."""
        parts = []
        if self.on_gpu is not None:
            parts.append("GPUs" if self.on_gpu else "CPU ranks")
        if self.has_peers:
            parts.append("world above 1")
        if self.accumulates is not None:
            parts.append("accumulation above 1" if self.accumulates else "accumulation 1")
        parts += [values_words(knob, values) for knob, values in self.others.items()]
        parts += [f"`{knob}` above {number}" for knob, number in self.above.items()]
        if self.is_named:
            parts.append("the knob is limited")
        return ", ".join(parts) + (", or the knob is limited" if self.or_named else "")


def values_words(knob: str, values: tuple[KnobValue, ...]) -> str:
    """Description of the values that another knob must have, such as "`stage` 1 or 2"."""
    return f"`{knob}` " + " or ".join(f"`{value_text(value)}`" for value in values)


def value_text(value: object) -> str:
    """Text of a knob's value as configuration files write it, such as `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)
