"""Wide cases: tests that run with SHARDTUNE_TEST_LONG=1 alone (`make test-long`), beside few telling ones that always run."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

IS_LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
WIDE = pytest.mark.skipif(not IS_LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
"""Mark of a test, or of a parameter, that only widens what others prove."""


def wide(*values: Any, id: str | None = None) -> Any:
    """A case of a parametrised test that runs in the long run alone."""
    return pytest.param(*values, marks=WIDE, id=id)


def telling(names: Iterable[str], often: Iterable[str]) -> list[Any]:
    """Cases by name, of which those of `often` always run and the others are wide."""
    always = set(often)
    names = list(names)
    assert always <= set(names), always - set(names)
    return [name if name in always else wide(name) for name in names]
