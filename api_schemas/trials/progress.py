"""Schema of a run's progress."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import MOST_PROGRAMS, ProgramLoad


class Progress(Schema):
    """Progress of a run, as its rank 0 last reported it."""

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
    """Speed in tokens per second and GPU, over the windows (groups of steps timed together) so far."""
    step_s: float | None = None
    """Seconds of the last step, measured by rank 0. If steps are timed in groups (windows), the mean over the last
    group. None before the first step."""
    steps_left: int | None = None
    """Minimum number of steps that the run still has to train according to its plan."""
    foreign_cpu_cores: float | None = Field(default=None, ge=0, le=1e6)
    """Number of CPU cores that other programs use while the run waits for a quiet machine; None in other phases of the
    run."""
    foreign_programs: tuple[ProgramLoad, ...] = Field(default=(), max_length=MOST_PROGRAMS)
    """Programs that keep the machine busy while the run waits for it to be quiet, busiest first."""
    waited_s: float | None = Field(default=None, ge=0, le=1e9)
    """Seconds that all attempts at the run have waited so far for a quiet machine; None if they did not wait."""
