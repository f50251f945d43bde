"""A trial that a running service has one of its workers run under the profiler."""

import sys
import time
from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.cli.connection import running, study_named
from shardtune.service.cli.errors import NothingFeasible, PlatformFailure
from shardtune.service.client import ServiceClient, ServiceRejected

_EVERY_S = 1.0


def asked(study: str, number: int | None, service: str, key_file: Path | None, timeout_s: float | None) -> Diagnosis:
    """Of a trial by its number, None: of the answer. One that is stored is not made again.

    Raises:
        InputError: there is no such study or trial, or it cannot be run under the profiler now.
        NothingFeasible: the profiled run failed by its own fault, such as memory.
        PlatformFailure: it failed otherwise, was cancelled, or the time is over.
    """
    with running(service, key_file) as client:
        stored = study_named(client, study)
        chosen = client.best(stored.study_id).best.trial_number if number is None else number
        told = _stored(client, stored.study_id, chosen) or client.diagnose(stored.study_id, chosen)
        if told.diagnosis is None:
            sys.stderr.write(
                f"trial {chosen} of {stored.study_id} is to run once more, under the profiler of a worker\n"
            )
        return _ended(client, told, timeout_s)


def _stored(client: ServiceClient, study_id: str, number: int) -> TrialDiagnosis | None:
    """One that is there or under way."""
    try:
        told = client.diagnosis(study_id, number)
    except ServiceRejected as rejected:
        if rejected.status != 404:
            raise
        return None
    return told if told.state.is_open or told.diagnosis is not None else None


def _ended(client: ServiceClient, told: TrialDiagnosis, timeout_s: float | None) -> Diagnosis:
    began = time.monotonic()
    while told.state.is_open:
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            raise PlatformFailure(
                f"the run under the profiler is {told.state.value} after {timeout_s:g} s (--timeout-s); it goes on, ask again"
            )
        time.sleep(_EVERY_S)
        told = client.diagnosis(told.study_id, told.trial_number)
    if told.diagnosis is not None:
        return told.diagnosis
    why = told.failure.message if told.failure is not None else "it was cancelled"
    kind = NothingFeasible if told.state is TrialState.INFEASIBLE else PlatformFailure
    raise kind(f"nothing could be told of trial {told.trial_number}: {why}; the study's answer does not depend on it")
