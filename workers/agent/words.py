"""A run in a few words, for the worker's log."""

from typing import assert_never

from shardtune.api_schemas.diagnosis import Diagnosis, Traced
from shardtune.api_schemas.failures import Failure
from shardtune.api_schemas.leases import Lease
from shardtune.api_schemas.measurements import Measurement
from shardtune.api_schemas.models import ModelProfile
from shardtune.api_schemas.restart import RestartMeasurement


def task(lease: Lease) -> str:
    """What is to be run."""
    if lease.task.kind == "profile":
        return "profile"
    return f"{lease.task.kind} of {lease.task.config.describe()}"


def end(result: Measurement | ModelProfile | RestartMeasurement | Traced | Diagnosis | Failure) -> str:
    """What it came to."""
    match result:
        case Failure():
            return f"{result.kind} ({result.message})"
        case Measurement():
            return f"{result.tokens_per_s_per_gpu:.1f} tokens/s/GPU"
        case RestartMeasurement():
            return f"saved in {result.save_s:.2f} s, loaded in {result.load_s:.2f} s"
        case Traced():
            return f"{result.steps} steps recorded in {result.folder}"
        case Diagnosis():
            return f"a diagnosis of steps of {1e3 * result.step_s:.1f} ms"
        case ModelProfile():
            return f"{result.parameters:,} parameters"
        case _:
            assert_never(result)
