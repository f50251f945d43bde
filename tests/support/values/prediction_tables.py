"""Tables of predictions for tests: those of named strategies, without a search for the fastest."""

from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.tuner.prediction import prediction_request
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, Calibrations
from shardtune.tuner.prediction.prediction_table import predict_all


def predicted_table(request: PredictionRequest, calibrations: Calibrations = NO_CALIBRATIONS) -> PredictionTable:
    """Predict the configurations of a request, or one of each strategy."""
    return predict_all(prediction_request.resolve(request, None), calibrations)
