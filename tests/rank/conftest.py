"""A fork server for the whole directory."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardtune.api_schemas.trials.rank_reports import RankReport
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.ranks.tiny_tasks import tiny_task


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    process = HostProcess.start(tmp_path_factory.mktemp("host"))
    yield process
    process.close()


@pytest.fixture
def run(host: HostProcess) -> Callable[..., RankReport]:
    """Run a tiny trial and return rank 0's report, which must be complete."""

    def run_tiny(strategy: dict[str, Any], **changes: Any) -> RankReport:
        report = host.run(tiny_task(strategy, **changes))[0]
        assert report.status == "complete", report.failure
        return report

    return run_tiny
