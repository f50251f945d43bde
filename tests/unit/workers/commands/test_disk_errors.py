"""A disk that cannot be written ends a worker's command with a sentence and not with a traceback."""

import argparse
import errno

import pytest

from shardtune.workers.commands import dispatch
from shardtune.workers.commands.exit_codes import COULD_NOT_WORK


def run(monkeypatch: pytest.MonkeyPatch, number: int) -> int:
    def command(*_: object) -> int:
        raise OSError(number, "the disk says no", "/work/agent.lock")

    monkeypatch.setattr(dispatch, "COMMANDS", {"detect": command})
    return dispatch.dispatch(argparse.Namespace(command="detect"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    assert run(monkeypatch, number) == COULD_NOT_WORK
    assert "the disk says no: '/work/agent.lock'; free some space" in capsys.readouterr().err


def test_other_errors_of_the_system_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="the disk says no"):
        run(monkeypatch, errno.EIO)
