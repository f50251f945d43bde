"""Skip or fail a test whose program is not installed."""

import os

import pytest


def missing(requirement: str) -> None:
    """Skip a test that cannot run here; in CI, where nothing may be missing, fail it."""
    if os.environ.get("SHARDTUNE_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"{requirement} is missing; run tests/setup-machine.sh")
    pytest.skip(f"{requirement} is missing")
