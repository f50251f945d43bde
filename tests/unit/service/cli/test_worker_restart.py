"""The worker of `tune` is restarted when it dies, and the progress says how it ended."""

from pathlib import Path

import pytest

from shardtune.service.cli.errors import PlatformFailure
from shardtune.service.cli.local_stack import LocalWorker


class Service:
    """A service at which no worker registers."""

    base_url, api_key = "http://127.0.0.1:9", None

    def workers(self) -> list[object]:
        return []


def test_a_restart_tells_the_last_line_of_the_workers_log(tmp_path: Path) -> None:
    worker = LocalWorker(Service(), tmp_path, 1, None, ["--no-such-option"])  # type: ignore[arg-type]
    with pytest.raises(PlatformFailure, match="exit code 2 before it was registered"):
        worker.start(lambda _: None)
    try:
        ending = worker.keep_alive()
        assert ending is not None and ending.startswith("exit code 2; ") and "--no-such-option" in ending
    finally:
        worker.stop()
