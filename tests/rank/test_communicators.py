"""How many communicators a strategy makes does not depend on how deep the model is: NCCL's each take memory of the device."""

import json
import subprocess
import sys

import pytest

from tests.support.communicators import STRATEGIES

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def made() -> dict[str, list[int]]:
    """By strategy, with few and with more blocks, on four ranks."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.communicators"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_deeper_model_has_no_more_communicators(made: dict[str, list[int]], name: str) -> None:
    few, more = made[name]
    assert more <= few
