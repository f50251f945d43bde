"""Schema of a run's progress."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import MOST_PROGRAMS, ProgramLoad


class Progress(Schema):
    """Progress of a run, as last written by rank 0."""

    phase: Literal[
        "waiting_for_quiet",
        "starting",
        "building",
        "warming_up",
        "measuring",
        "training",
        "saving",
        "loading",
        "finishing",
    ]
    step: int = 0
    tokens_per_s_per_gpu: float | None = None
    """Speed in tokens per second and GPU over the windows timed so far."""
    step_s: float | None = None
    """Seconds of the last step, or mean seconds per step of the last window, measured by rank 0; None before the first
    step."""
    steps_left: int | None = None
    """Minimum number of steps that the plan still needs."""
    foreign_cpu_cores: float | None = Field(default=None, ge=0, le=1e6)
    """CPU cores that other programs use, while the run waits until the machine is quiet; None in other phases."""
    foreign_programs: tuple[ProgramLoad, ...] = Field(default=(), max_length=MOST_PROGRAMS)
    """Programs that keep the machine busy while the run waits, busiest first."""
    waited_s: float | None = Field(default=None, ge=0, le=1e9)
    """Seconds that the run's attempts have waited so far until the machine is quiet; None if they did not wait."""
