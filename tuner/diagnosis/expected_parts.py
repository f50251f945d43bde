"""Comparison of the predicted with the measured seconds of each part of a step, the largest difference first."""

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.expected_parts import ExpectedName, ExpectedPart
from shardtune.api_schemas.trials.predictions import SpeedPrediction

_COMPUTING = ("matmul", "vector_matmul", "attention", "elementwise")
_LAUNCHING = ("launch", "backend")
_ON_GPUS: dict[ExpectedName, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "computing": (_COMPUTING, ("compute",)),
    "launching": (_LAUNCHING, ("host", "idle")),
    "communication": (("communication",), ("transferring", "waiting")),
    "optimizer": (("step", "offload"), ("optimizer", "copies")),
}
"""Names of the parts of a step in the predictor and in `StepParts`, paired so that prediction and measurement can be
compared. Waiting for data has no pair, as it is never predicted."""
# A CPU rank's operators and the dispatch between them run on one thread: the profiler's own time lies between as well.
_ON_CPU = {name: parts for name, parts in _ON_GPUS.items() if name != "launching"} | {
    "computing": ((*_COMPUTING, *_LAUNCHING), ("compute", "host"))
}


def expected_parts(diagnosis: Diagnosis, speed: SpeedPrediction) -> tuple[ExpectedPart, ...]:
    """Compare the predicted seconds of each part of a step with the measured seconds; the largest difference comes
    first."""
    parts = [
        ExpectedPart(
            name=name,
            expected_s=sum(speed.parts_s[part] for part in predicted),
            measured_s=sum(getattr(diagnosis.parts, f"{part}_s") for part in measured),
        )
        for name, (predicted, measured) in (_ON_GPUS if diagnosis.device == "cuda" else _ON_CPU).items()
    ]
    return tuple(sorted(parts, key=lambda part: -abs(part.measured_s - part.expected_s)))
