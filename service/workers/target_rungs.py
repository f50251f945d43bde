"""Fit a study with a target to the cluster on which its trials run."""

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.http.errors import invalid_from_value_error
from shardtune.tuner.projection import rungs


def on_rung(
    request: StudyRequest, cluster: Cluster, measured: MeasuredHardware | None = None, *, has_worker: bool = True
) -> StudyRequest:
    """Return the request with the cluster's part of its target's global batch; unchanged without a target. `has_worker`
    False: a later worker may bring rates.

    Raises:
        Invalid: nothing can be projected to the target; names the field, its value and the remedy.
    """
    try:
        return rungs.for_rung(request, cluster, measured, has_worker=has_worker)
    except ValueError as error:
        raise invalid_from_value_error("target" if str(error).startswith("target") else "", error) from error


def notes_of_begun(spec: StudyRequest, cluster: Cluster, measured: MeasuredHardware | None) -> tuple[str, ...]:
    """Note on a study that begins with the worker it waited for: what its target still lacks; empty if nothing.

    The measured answer does not need it, so the study begins: the worker's host may be measured until it ends.
    """
    try:
        rungs.for_rung(spec, cluster, measured)
    except ValueError as error:
        return (f"nothing will be projected to the target unless this changes before the study ends: {error}",)
    return ()
