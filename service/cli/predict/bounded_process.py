"""Child process that answers one question within a limit of time, and ends with its owner."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile

from shardtune.service.cli.parent_death import dies_with_parent


def run(
    command: Sequence[str], question: str, limit_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, whose process ends with this one and takes all that it started along.

    Raises:
        TimeoutExpired: it took longer than `limit_s` seconds.
    """
    # Files, not pipes: a process that the user's code left behind would hold a pipe open for ever.
    with TemporaryFile("w+") as asked, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        asked.write(question)
        asked.seek(0)
        process = subprocess.Popen(
            dies_with_parent(command),
            stdin=asked,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()
