"""Knowledge from earlier runs, with which a search begins."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardtune.tuner.prediction.calibration import UNCALIBRATED, MemoryCalibration, SpeedCalibration
from shardtune.tuner.prediction.learning import ComparedRun


@dataclass(frozen=True)
class Knowledge:
    """Knowledge from earlier runs on this hardware: calibrations of the predictor, and the memory that a rank may
    use."""

    limit_gib: float
    speed: SpeedCalibration = UNCALIBRATED
    memory: MemoryCalibration = field(default_factory=MemoryCalibration)
    related: Sequence[ComparedRun] = ()
    """Runs of other studies on this hardware with their predictions, the newest first."""
