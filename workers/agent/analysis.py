"""Analysis of a leased run's profiler traces into a diagnosis, in a separate process with a time limit, while the agent
renews the lease."""

import subprocess
import sys

from pydantic import ValidationError

from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.launchers import processes

LONGEST_S = 300.0
"""Time limit in seconds of a trace analysis, which takes some seconds for each 100,000 events of a rank; the traces are
kept after a timeout."""


def diagnose(traced: ProfilerRecording, longest_s: float = LONGEST_S) -> Diagnosis | Failure:
    """Analyse a run's traces and return the diagnosis, or a failure with the reason why there is none. Such a failure
    never blames the traced configuration."""
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
