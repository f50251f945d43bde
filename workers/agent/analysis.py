"""Analysis of a leased run's profiler traces into a diagnosis, in a separate process with a time limit, while the agent
renews the lease."""

import subprocess
import sys

from pydantic import ValidationError

from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.launchers import processes

LONGEST_S = 300.0
"""Time limit in seconds for the analysis of small traces. If the analysis takes longer, the traces are kept."""
_BYTES_PER_S = 1e6
"""Bytes of traces for which the analysis gets one more second. On an idle core it reads about 6 MB of traces a
second."""


def time_limit_s(traced: ProfilerRecording) -> float:
    """Time limit in seconds for the analysis of a run's traces, which grows with their size: traces of eight ranks of
    an 8B model have hundreds of MB."""
    return LONGEST_S + traced.bytes / _BYTES_PER_S


def diagnose(traced: ProfilerRecording, longest_s: float | None = None) -> Diagnosis | Failure:
    """Analyse a run's traces. Returns the diagnosis, or a failure that says why there is none; such a failure never
    blames the traced configuration."""
    longest_s = time_limit_s(traced) if longest_s is None else longest_s
    command = [sys.executable, "-m", "shardtune.traces", traced.folder]
    try:
        analysis = processes.start_child(
            command, processes.without_secrets(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            diagnosis_json, errors = analysis.communicate(timeout=longest_s)
        finally:
            analysis.kill()
            analysis.wait()
        if analysis.returncode == 0:
            return Diagnosis.model_validate_json(diagnosis_json).model_copy(update={"recorded": traced})
        reason = errors.decode(errors="replace").strip()[-2000:]
        reason = reason or f"the analysis ended with exit code {analysis.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"the analysis took more than {longest_s:.0f} s"
    except (OSError, ValidationError) as error:
        reason = f"the analysis failed: {error}"[:2000]
    return Failure(kind=FailureKind.SETUP, message=f"{reason}; the traces are in {traced.folder}")
