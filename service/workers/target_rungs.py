"""Fit a study with a target to the cluster on which its trials run."""

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.http.errors import invalid_from_value_error
from shardtune.tuner.baseline import implied_precision
from shardtune.tuner.projection import rungs


def on_rung(
    request: StudyRequest, cluster: Cluster, measured: MeasuredHardware | None = None, *, has_worker: bool = True
) -> StudyRequest:
    """Return the request of a study that projects to a target (a larger cluster), with its global batch reduced in
    proportion to the study's own cluster. A request without a target is returned unchanged. With `has_worker` False,
    a later worker may still measure the hardware rates, so that they may be missing.

    Raises:
        Invalid: nothing can be projected to the target; names the field, its value and the remedy.
    """
    try:
        found = None if request.target is None else implied_precision(request.baseline, request.workload.adapter)
        implied = None if found is None else found[0]
        return rungs.for_rung(request, cluster, measured, has_worker=has_worker, implied=implied)
    except ValueError as error:
        raise invalid_from_value_error("", error) from error


def notes_of_begun(spec: StudyRequest, cluster: Cluster, measured: MeasuredHardware | None) -> tuple[str, ...]:
    """Note on a study that begins although something is still missing for the projection to its target (a larger
    cluster), such as measured hardware rates; empty if nothing is missing.

    The study begins because its own measurements do not need this, and because the worker's hardware rates may be
    measured until the study ends.
    """
    try:
        rungs.for_rung(spec, cluster, measured)
    except ValueError as error:
        return (f"nothing will be projected to the target unless this changes before the study ends: {error}",)
    return ()
