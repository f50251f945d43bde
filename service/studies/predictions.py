"""Answer prediction requests with data that the service has: a live worker's cluster, the hardware rates it measured,
and calibrations from its trials.
"""

from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.hub import named_models
from shardtune.service.planning import own_traces
from shardtune.service.process.context import Context
from shardtune.service.studies.local_machine import local_machine
from shardtune.tuner.search import fastest


def predict(context: Context, request: PredictionRequest) -> PredictionTable:
    """Predict memory and speed of configurations; the cluster name `local` means the live workers' cluster.

    Raises:
        Invalid: no worker exists for the cluster `local`, or workers of several clusters; or the named model cannot be
            read.
        ValueError: unknown hardware or model family, a missing model field, or an impossible mesh.
    """
    request = add_trace(context, named_models.with_config_of(context, request))
    # A named cluster is predicted from the catalogue alone, without the database.
    if request.cluster != "local":
        return fastest.answer_request(request)
    cluster, device, experience = local_machine(context)
    hardware = request.hardware or experience.hardware
    resolved_request = request.model_copy(update={"cluster": cluster, "hardware": hardware})
    return fastest.answer_request(resolved_request, experience.calibrations, device)


def add_trace(context: Context, request: PredictionRequest) -> PredictionRequest:
    """Add to a prediction request the trace of the user's own model code, if an earlier study that the sender can see
    has recorded one.
    """
    if not request.model.is_own:
        return request
    with context.db.read() as session:
        return own_traces.with_trace(session, context.principal.project_id, request)
