"""Upgrade under load: replicas and workers of two releases on one Postgres, and back.

`python -m benchmarks.service.upgrade` is the long form.
"""

import os
import subprocess

import pytest

from benchmarks.service import releases, upgrade
from tests.support.requirements import missing

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="eight stages of two releases: minutes"),
]


@pytest.fixture(scope="module")
def former(tmp_path_factory):
    try:
        return releases.checkout(releases.former_release(), tmp_path_factory.mktemp("former"))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        missing(f"the repository's history ({error})")


def test_two_releases_share_a_database_under_load_and_back_without_an_error_or_a_loss(
    empty_postgres_url, former, tmp_path
):
    plan = upgrade.Plan(workers=4, trials=4, stage_s=0.5)
    outcome = upgrade.run(empty_postgres_url, tmp_path, former, releases.working_tree(), plan)
    assert outcome.faults == []
    assert outcome.studies["complete"] >= 2, outcome
    # Each stage had two replicas that a load balancer may send requests to.
    assert set(map(tuple, outcome.stages.values())) == {(200, 200)}, outcome.stages
