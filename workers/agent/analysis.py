"""Analysis of a leased run's traces into a diagnosis, in a separate process: bounded in time, and the lease is renewed
meanwhile."""

import subprocess
import sys

from pydantic import ValidationError

from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.launchers import processes

LONGEST_S = 300.0
"""Limit of an analysis, which takes some seconds for each 100,000 events of a rank; the traces are kept."""


def diagnose(traced: ProfilerRecording, longest_s: float = LONGEST_S) -> Diagnosis | Failure:
    """Diagnose the traces, or return a failure that says why there is no diagnosis; the traced configuration is not at
    fault."""
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
