"""Choice among calibrations by model: those of all models, or those of one step of the user's own code."""

from shardtune.tuner.prediction.calibration import (
    ESTIMATED,
    NO_TRIALS,
    TRACED,
    Calibrations,
    MemoryCalibration,
    SpeedCalibration,
)
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes.counted_shape import TracedShape


def memory_calibration(calibrations: Calibrations, shape: ModelShape | None) -> MemoryCalibration:
    """Memory calibration for a model; the prior is wider for a model whose block widths are estimated, or whose
    training step was traced (the user's own code).

    The calibration of a traced model is learnt from its own trials alone.
    """
    if shape is not None and shape.step_trace is not None:
        own = calibrations.own_code.get(shape.step_trace)
        return TRACED if own is None else own.memory
    if calibrations.memory is not None:
        return calibrations.memory
    return ESTIMATED if isinstance(shape, TracedShape) and shape.estimated else NO_TRIALS


def speed_calibration(calibrations: Calibrations, shape: ModelShape | None) -> SpeedCalibration:
    """Speed calibration for a model. For a model whose training step was traced (the user's own code), it is learnt
    from its own trials together with those of models predicted by formula."""
    trace = None if shape is None else shape.step_trace
    own = None if trace is None else calibrations.own_code.get(trace)
    return calibrations.speed if own is None else own.speed
