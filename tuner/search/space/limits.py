"""Limits on the search: the user's pins, lists and ranges, checked once and applied to each knob's candidates."""

import difflib
from collections.abc import Mapping

from shardtune.api_schemas.knobs import Knob
from shardtune.api_schemas.training.search_space import BACKENDS, KnobValue, Limit, SpaceLimits
from shardtune.tuner.search.space.legal_values import COMMON


class KnobLimits:
    """User's limits on the search (`SpaceLimits`), checked to name only known knobs with values of the right type."""

    def __init__(self, spec: SpaceLimits, knobs: Mapping[str, Knob]) -> None:
        """Check every limit that the user sets on a knob.

        Raises:
            ValueError: an unknown knob, or a value a knob cannot take.
        """
        for name, limit in spec.knobs.items():
            _check_limit(name, limit, knobs)
        self._all_knobs, self._limits = knobs, spec.knobs
        self.defaults = {
            name: limit
            for name, limit in spec.knobs.items()
            if not isinstance(limit, Limit | tuple) and name in COMMON and _is_default(COMMON[name], limit)
        }
        """Values of those knobs of every backend that the user pinned to their default; such knobs have this value
        whether or not they have an effect."""
        self._restricted: dict[tuple[str, tuple[KnobValue, ...]], tuple[KnobValue, ...]] = {}
        self.backends: tuple[str, ...] = tuple(backend for backend in BACKENDS if backend in spec.backends)
        self.allow_compile = True if _is_named(spec.knobs.get("compile"), True) else spec.allow_compile
        """Whether the model's blocks may be compiled; None lets the device decide."""

    def __contains__(self, knob: str) -> bool:
        return knob in self._limits

    def restrict(self, knob: str, candidates: tuple[KnobValue, ...]) -> tuple[KnobValue, ...]:
        """Candidate values of a knob that remain under the user's limit. For a knob that accepts any value of the user,
        return the user's values instead."""
        limit = self._limits.get(knob)
        if limit is None:
            return candidates
        # A search draws each limited knob thousands of times, among a few sets of candidates.
        restricted = self._restricted.get((knob, candidates))
        if restricted is None:
            restricted = self._restricted[knob, candidates] = self._restrict(knob, limit, candidates)
        return restricted

    def _restrict(
        self, knob: str, limit: KnobValue | tuple[KnobValue, ...] | Limit, candidates: tuple[KnobValue, ...]
    ) -> tuple[KnobValue, ...]:
        is_open = self.is_open(knob)
        if isinstance(limit, Limit):
            inside = tuple(value for value in candidates if _within(value, limit))
            return inside or (_ends(limit) if is_open else ())
        named = tuple(dict.fromkeys(limit if isinstance(limit, tuple) else (limit,)))
        if is_open:
            return tuple(sorted(named)) if all(_is_number(value) for value in named) else named
        return tuple(value for value in candidates if any(_is_same(value, allowed) for allowed in named))

    def compiles(self, on_gpu: bool) -> bool:
        """Whether the search tries `torch.compile`: as the user's limits say; without such a limit, only on GPUs."""
        return on_gpu if self.allow_compile is None else self.allow_compile

    def names(self, knob: str, value: KnobValue) -> bool:
        """Whether the user's limits name exactly this value for the knob."""
        return _is_named(self._limits.get(knob), value)

    def requires(self, knob: str, value: KnobValue) -> bool:
        """Whether `value` is the only value that the user's limits leave for the knob."""
        limit = self._limits.get(knob)
        named = limit if isinstance(limit, tuple) else (limit,)
        return limit is not None and all(
            allowed is not None and not isinstance(allowed, Limit) and _is_same(allowed, value) for allowed in named
        )

    def is_open(self, knob: str) -> bool:
        """Whether the values that a user names for the knob replace the search's candidates."""
        return knob in self._all_knobs and self._all_knobs[knob].accepts_own_values

    def limit_text(self, knob: str) -> str:
        """Text of the limit on a knob as the user wrote it, for messages."""
        limit = self._limits.get(knob)
        if isinstance(limit, Limit):
            return f"min {limit.min}, max {limit.max}"
        return repr(list(limit)) if isinstance(limit, tuple) else repr(limit)

    def pinned(self, knob: str, otherwise: KnobValue) -> KnobValue:
        """Single value to which the user set a knob; `otherwise` where the knob has no limit, a list or a range."""
        limit = self._limits.get(knob)
        if limit is None or isinstance(limit, Limit | tuple):
            return otherwise
        return limit


class NoLimits(KnobLimits):
    """Limits that allow every value of every knob, including knobs that are searched only where the user names them."""

    def __contains__(self, knob: str) -> bool:
        return True

    def names(self, knob: str, value: KnobValue) -> bool:
        """Whether the user's limits name this value for the knob: always true without limits."""
        return True


def _is_named(limit: KnobValue | tuple[KnobValue, ...] | Limit | None, value: KnobValue) -> bool:
    return any(_is_same(value, allowed) for allowed in (limit if isinstance(limit, tuple) else (limit,)))


def _is_default(knob: Knob, value: KnobValue) -> bool:
    """Whether a user's pin of a knob to `value` equals the knob's default, which the knob also has where it has no
    effect, and which is always among its candidates."""
    is_candidate = knob.accepts_own_values or any(_is_same(value, candidate) for candidate in knob.tries)
    return is_candidate and _is_same(value, knob.default) and not knob.within


def _is_number(value: KnobValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same(value: KnobValue, allowed: KnobValue | Limit | None) -> bool:
    # In Python True == 1, but `true` and `1` are different values of a knob.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _within(value: KnobValue, limit: Limit) -> bool:
    if isinstance(value, bool | str):
        return False
    return (limit.min is None or value >= limit.min) and (limit.max is None or value <= limit.max)


def _ends(limit: Limit) -> tuple[int | float, ...]:
    ends = {end for end in (limit.min, limit.max) if end is not None}
    return tuple(sorted(int(end) if end == int(end) else end for end in ends))


def _check_limit(name: str, limit: KnobValue | tuple[KnobValue, ...] | Limit, knobs: Mapping[str, Knob]) -> None:
    knob = knobs.get(name)
    if knob is None:
        close = difflib.get_close_matches(name, knobs, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"use one of {', '.join(knobs)}"
        raise ValueError(f"space.knobs ({name!r}) is not a knob; {hint}")
    if isinstance(limit, Limit):
        _check_range(name, knob, limit)
        return
    values = limit if isinstance(limit, tuple) else (limit,)
    # An empty list would silently remove every path through the knob.
    if not values:
        raise ValueError(
            f"space.knobs.{name} (an empty list) leaves nothing to search; drop it or name {knob.expected()}"
        )
    for value in values:
        if not knob.accepts(value):
            raise ValueError(f"space.knobs.{name} ({value!r}) is not {knob.expected()}; change or drop it")


def _check_range(name: str, knob: Knob, limit: Limit) -> None:
    if knob.kind not in ("int", "number"):
        raise ValueError(f"space.knobs.{name} (a range) has no order; name values instead: {knob.expected()}")
    for end in (limit.min, limit.max):
        if end is not None and knob.kind == "int" and end != int(end):
            raise ValueError(f"space.knobs.{name} ({end:g}) bounds an integer knob; use a whole number")
    if knob.accepts_own_values:
        # A range without a candidate inside is searched at its ends.
        for value in _ends(limit):
            if not knob.accepts(value):
                raise ValueError(f"space.knobs.{name} (bound {value:g}) is not {knob.expected()}; move that end")
