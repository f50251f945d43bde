"""Child process that answers one question within a limit of time, and ends with its owner."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile

from shardtune.service.cli.processes import MODULE

_KEEPER = (*MODULE, "shardtune.workers.launchers.parent_death", "--kept")
"""Command of a parent process that kills all processes which the user's code started and left behind, even those in
another session."""


def run(
    command: Sequence[str], question: str, limit_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command and return its exit code, stdout and stderr; all processes that it started end with this process.

    Raises:
        TimeoutExpired: the command took longer than `limit_s` seconds.
    """
    # Files, not pipes: a process that the user's code left behind would hold a pipe open for ever.
    with TemporaryFile("w+") as asked, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        asked.write(question)
        asked.seek(0)
        process = subprocess.Popen(
            [*_KEEPER, str(os.getpid()), *command],
            stdin=asked,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=limit_s)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
            process.wait()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()
