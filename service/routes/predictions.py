"""Predictions over HTTP: what fits, how fast and why, without a worker."""

from fastapi import APIRouter

from api_schemas.predictions import PredictionRequest, PredictionTable
from service import errors, predictions
from service.context import InContext

router = APIRouter(prefix="/v1/predictions", tags=["predictions"])


@router.post("")
def create_prediction(context: InContext, request: PredictionRequest) -> PredictionTable:
    """Predict memory and speed of configurations; without any, of one of each strategy. Nothing is stored or run."""
    try:
        return predictions.predict(context, request)
    except ValueError as error:
        raise errors.from_value_error("", error) from None
