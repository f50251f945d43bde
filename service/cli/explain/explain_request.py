"""Request the diagnosis of a trial from a running service, whose worker runs the trial under the profiler."""

import sys
import time
from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.cli.connection import connect, find_study
from shardtune.service.cli.errors import NothingFeasible, PlatformFailure
from shardtune.service.client import ServiceClient, ServiceRejected

_POLL_S = 1.0


def request_diagnosis(
    study: str, number: int | None, service: str, key_file: Path | None, timeout_s: float | None
) -> Diagnosis:
    """Return the diagnosis of a trial, and reuse a stored one. If `number` is None, the recommended trial is meant.

    Raises:
        InputError: there is no such study or trial, or the trial cannot be run under the profiler now.
        NothingFeasible: the profiled run failed because of its configuration, such as by running out of memory.
        PlatformFailure: the run failed for another reason, was cancelled, or did not end within `timeout_s`.
    """
    with connect(service, key_file) as client:
        stored = find_study(client, study)
        chosen = client.best(stored.study_id).best.trial_number if number is None else number
        current = _stored_diagnosis(client, stored.study_id, chosen) or client.diagnose(stored.study_id, chosen)
        if current.diagnosis is None:
            sys.stderr.write(f"a worker runs trial {chosen} of {stored.study_id} once more, under the profiler\n")
        return _wait_for_diagnosis(client, current, timeout_s)


def _stored_diagnosis(client: ServiceClient, study_id: str, number: int) -> TrialDiagnosis | None:
    """Return a trial's diagnosis that is stored or being made; None if there is none."""
    try:
        current = client.diagnosis(study_id, number)
    except ServiceRejected as rejected:
        if rejected.status != 404:
            raise
        return None
    # A run that failed or was cancelled left no diagnosis: a new request may succeed.
    return current if current.state.is_open or current.diagnosis is not None else None


def _wait_for_diagnosis(client: ServiceClient, current: TrialDiagnosis, timeout_s: float | None) -> Diagnosis:
    began = time.monotonic()
    while current.state.is_open:
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            raise PlatformFailure(
                f"the profiled run is {current.state.value} after {timeout_s:g} s (--timeout-s); it continues, run the command again"
            )
        time.sleep(_POLL_S)
        current = client.diagnosis(current.study_id, current.trial_number)
    if current.diagnosis is not None:
        return current.diagnosis
    reason = current.failure.message if current.failure is not None else "it was cancelled"
    kind = NothingFeasible if current.state is TrialState.INFEASIBLE else PlatformFailure
    raise kind(f"no diagnosis of trial {current.trial_number}: {reason}; the study's answer does not depend on it")
