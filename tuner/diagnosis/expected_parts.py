"""The predictor's parts of a step beside the measured ones, what is furthest off first."""

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.expected_parts import ExpectedName, ExpectedPart
from shardtune.api_schemas.trials.predictions import SpeedPrediction

_COMPUTING = ("matmul", "vector_matmul", "attention", "elementwise")
_LAUNCHING = ("launch", "backend")
_ON_GPUS: dict[ExpectedName, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "computing": (_COMPUTING, ("compute",)),
    "launching": (_LAUNCHING, ("host", "idle")),
    "communication": (("communication",), ("transferring", "waiting")),
    "optimizer": (("step",), ("optimizer", "copies")),
}
"""The predictor's names and those of `StepParts`; waiting for data is nowhere predicted."""
# A CPU rank's operators and the dispatch between them run on one thread: the profiler's own time lies between as well.
_ON_CPU = {name: parts for name, parts in _ON_GPUS.items() if name != "launching"} | {
    "computing": ((*_COMPUTING, *_LAUNCHING), ("compute", "host"))
}


def expected_parts(found: Diagnosis, speed: SpeedPrediction) -> tuple[ExpectedPart, ...]:
    """Each part that is predicted; the largest difference in seconds first."""
    told = [
        ExpectedPart(
            name=name,
            expected_s=sum(speed.parts_s[one] for one in predicted),
            measured_s=sum(getattr(found.parts, f"{one}_s") for one in measured),
        )
        for name, (predicted, measured) in (_ON_GPUS if found.device == "cuda" else _ON_CPU).items()
    ]
    return tuple(sorted(told, key=lambda one: -abs(one.measured_s - one.expected_s)))
