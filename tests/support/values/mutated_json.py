"""JSON values changed at random places, for fuzz tests: the same seed gives the same value."""

import copy
from random import Random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**9,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    10**300,
    0.0,
    -0.5,
    1e-320,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    "9" * 5000,
    "\x1b]0;owned\x07\x1b[2J",
    "\ud800",
    [],
    {},
    [[[[]]]],
    [0, -1, 2**63, "x", None],
    {"": None},
)
"""Values that a reader does not expect in the place of any other."""


def mutate(value: Any, random: Random, changes: int) -> Any:
    """A copy of a JSON value in which so many random places are replaced, removed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(changes):
        container, key = random.choice(list(_places(value)) or [(None, None)])
        if container is None:
            return random.choice(HOSTILE)
        action = random.random()
        if action < 0.15:
            del container[key]
        elif action < 0.3 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(random.choice(HOSTILE))
    return value


def _places(value: Any) -> Any:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from _places(inner)
