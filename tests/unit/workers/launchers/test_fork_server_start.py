"""A fork server whose libraries cannot be imported says so, with the remedy."""

import os
import sys
from pathlib import Path

import pytest

from shardtune.workers.launchers.base import LaunchFailed
from shardtune.workers.launchers.fork_server import FORK_SERVER_COMMAND, ForkServerLauncher


def test_a_torch_that_cannot_be_imported_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudart.so.13: cannot open shared object file: No such file or directory')"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    log = tmp_path / "work" / "host.log"
    launcher = ForkServerLauncher(environment, "test-torch-missing", log, 60, FORK_SERVER_COMMAND)
    with pytest.raises(LaunchFailed) as failed:
        launcher.prepare(lambda: False)
    launcher.close()
    message = str(failed.value)
    assert "cannot be imported (ImportError: libcudart.so.13: cannot open shared object file" in message
    assert f"install the `worker` extra into {sys.prefix}; see {log}" in message
    assert "--cold" not in message
    assert "Traceback" in log.read_text()
