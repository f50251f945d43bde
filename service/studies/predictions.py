"""Answer a prediction with what is known here: a live worker's cluster, what it measured, what its trials taught."""

from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.planning import calibrations
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility, registry
from shardtune.tuner.search import fastest


def predict(context: Context, request: PredictionRequest) -> PredictionTable:
    """Predict; `local` means the cluster that the live workers have.

    Raises:
        Invalid: `local` without a worker, or with several clusters.
        ValueError: unknown hardware or model family, a missing model field, a mesh that does not come out.
    """
    if request.cluster != "local":
        return fastest.table(request)
    with context.db.read() as session:
        worker = compatibility.local_worker(registry.live(context, session))
        known = calibrations.of(context.planner_cache, session, worker.fingerprint_key, context.principal.home)
        offer = worker.offer
    hardware = request.hardware or known.hardware
    asked = request.model_copy(update={"cluster": offer.cluster, "hardware": hardware})
    return fastest.table(asked, known.calibrations, DeviceDtypes.of_worker(offer))
