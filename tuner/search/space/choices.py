"""Helpers for a knob's candidate values: find a value among them, and select a few of them."""

import math

from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.backends.registry import KNOBS
from shardtune.tuner.search.space.questions import Question

_MAX_LISTED = 12


def describe_values(values: tuple[KnobValue, ...]) -> str:
    """Text that lists a knob's candidate values as a user would write them."""
    text = ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values[:_MAX_LISTED])
    return text + (", …" if len(values) > _MAX_LISTED else "")


def index_of(value: KnobValue | None, values: tuple[KnobValue, ...]) -> int | None:
    """Index of a value among a knob's candidates, None where it is absent; true does not equal 1."""
    for index, candidate in enumerate(values):
        if candidate == value and isinstance(candidate, bool) == isinstance(value, bool):
            return index
    return None


def nearest_index(value: KnobValue | None, values: tuple[KnobValue, ...]) -> int | None:
    """Index of a value among a knob's candidates, or of the candidate nearest by ratio; None where there is neither."""
    exact = index_of(value, values)
    if exact is not None or value is None or isinstance(value, bool | str):
        return exact
    # By ratio; + 1 because zero is a legal size.
    distances = [
        (abs(math.log((candidate + 1) / (value + 1))), index)
        for index, candidate in enumerate(values)
        if not isinstance(candidate, bool | str)
    ]
    return min(distances)[1] if distances else None


def spread(values: tuple[KnobValue, ...], most: int) -> tuple[KnobValue, ...]:
    """Select at most `most` of a knob's candidates, evenly apart in their order, with the first and the last."""
    if len(values) <= most:
        return values
    return tuple(values[round(index * (len(values) - 1) / (most - 1))] for index in range(most))


def lightest_values(question: Question) -> tuple[KnobValue, ...]:
    """Candidate value that uses the least memory, if the knob's declaration says which value does; otherwise all
    candidates."""
    knob = KNOBS.get(question.knob)
    least = None if knob is None else knob.memory_order[0] if knob.memory_order else knob.lightest
    if least is None:
        return question.values
    if least in ("min", "max"):
        numbers = [value for value in question.values if not isinstance(value, str)]
        return (min(numbers) if least == "min" else max(numbers),)
    return (least,) if index_of(least, question.values) is not None else question.values


def branching_values(question: Question) -> tuple[KnobValue, ...]:
    """Candidate values of a knob whose choice decides which further knobs exist, or how model states are placed; for
    any other knob, a single value."""
    if question.knob == "micro_batch":
        return tuple(dict.fromkeys((question.values[0], question.values[-1])))
    return lightest_values(question)
