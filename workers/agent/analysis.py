"""Analysis of a leased run's profiler traces into a diagnosis, in a separate process with a time limit, while the agent
renews the lease."""

import subprocess
import sys
import time
from collections.abc import Callable

from pydantic import ValidationError

from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.launchers import processes

LONGEST_S = 300.0
"""Time limit in seconds for the analysis of small traces. If the analysis takes longer, the traces are kept."""
_BYTES_PER_S = 1e6
"""Bytes of traces for which the analysis gets one more second. On an idle core it reads about 6 MB of traces a
second."""
_POLL_S = 0.2


def time_limit_s(traced: ProfilerRecording) -> float:
    """Time limit in seconds for the analysis of a run's traces, which grows with their size: traces of eight ranks of
    an 8B model have hundreds of MB."""
    return LONGEST_S + traced.bytes / _BYTES_PER_S


def diagnose(
    traced: ProfilerRecording, longest_s: float | None = None, give_up: Callable[[], bool] = lambda: False
) -> Diagnosis | Failure | None:
    """Analyse a run's traces. Returns the diagnosis, or a failure that says why there is none; such a failure never
    blames the traced configuration. None when `give_up` ended the analysis."""
    longest_s = time_limit_s(traced) if longest_s is None else longest_s
    command = [sys.executable, "-m", "shardtune.traces", traced.folder]
    try:
        analysis = processes.start_child(
            command, processes.without_secrets(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            output = _output_of(analysis, longest_s, give_up)
        finally:
            analysis.kill()
            analysis.wait()
        if output is None:
            return None
        diagnosis_json, errors = output
        if analysis.returncode == 0:
            return Diagnosis.model_validate_json(diagnosis_json).model_copy(update={"recorded": traced})
        reason = errors.decode(errors="replace").strip()[-2000:]
        reason = reason or f"the analysis ended with exit code {analysis.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"the analysis took more than {longest_s:.0f} s"
    except (OSError, ValidationError) as error:
        reason = f"the analysis failed: {error}"[:2000]
    return Failure(kind=FailureKind.SETUP, message=f"{reason}; the traces are in {traced.folder}")


def _output_of(
    analysis: "subprocess.Popen[bytes]", longest_s: float, give_up: Callable[[], bool]
) -> tuple[bytes, bytes] | None:
    """Output and errors of the analysis, once it has ended; None when `give_up` ended the wait.

    Raises:
        TimeoutExpired: the analysis takes longer than allowed.
    """
    ends_s = time.monotonic() + longest_s
    while not give_up():
        try:
            return analysis.communicate(timeout=max(0.0, min(_POLL_S, ends_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            # What it has written so far is kept for the next call.
            if time.monotonic() >= ends_s:
                raise
    return None
