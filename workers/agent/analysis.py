"""From the traces of a leased run to its diagnosis, in a process of its own: bounded in time, and no lease waits for it."""

import subprocess
import sys

from pydantic import ValidationError

from shardtune.api_schemas.trials.diagnosis import Diagnosis, Traced
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.launchers import processes

LONGEST_S = 300.0
"""Some seconds for each 100,000 events of a rank; the traces stay where they are."""


def diagnosed(traced: Traced, longest_s: float = LONGEST_S) -> Diagnosis | Failure:
    """What the traces say, or why nothing could be told: no fault of what was traced."""
    command = [sys.executable, "-m", "shardtune.traces", traced.folder]
    try:
        analysis = processes.start_child(
            command, processes.without_secrets(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            told, complaint = analysis.communicate(timeout=longest_s)
        finally:
            analysis.kill()
            analysis.wait()
        if analysis.returncode == 0:
            return Diagnosis.model_validate_json(told).model_copy(update={"recorded": traced})
        why = complaint.decode(errors="replace").strip()[-2000:]
        why = why or f"the analysis ended with exit code {analysis.returncode}"
    except subprocess.TimeoutExpired:
        why = f"the analysis took more than {longest_s:.0f} s"
    except (OSError, ValidationError) as error:
        why = f"the analysis failed: {error}"[:2000]
    return Failure(kind=FailureKind.SETUP, message=f"{why}; the traces are in {traced.folder}")
