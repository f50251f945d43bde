"""Decide which tasks a worker's protocol version can express: a worker that ignores a field which it does not know would
measure something else.
"""

from pydantic import BaseModel

from shardtune.api_schemas.protocol import PROTOCOL_VERSION, CannotExpress, expressed
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.float8 import FLOAT8_SINCE
from shardtune.api_schemas.training.quantization import QUANTIZATION_SINCE
from shardtune.api_schemas.training.workload import FP16_SINCE, LOW_STATES_SINCE, Workload
from shardtune.api_schemas.trials.short_steps import SHORT_STEPS_SINCE
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow


def why_inexpressible(workload: Workload, task: BaseModel, protocol_version: int) -> str | None:
    """Reason why a task on this workload cannot be expressed in messages of a protocol version; None if it can."""
    if protocol_version >= PROTOCOL_VERSION:
        return None
    precision, optimizer = workload.precision, workload.optimizer
    if precision.has_low_states and protocol_version < LOW_STATES_SINCE:
        # It would let DeepSpeed keep float32 states without a word.
        return f"precision ({precision.name}) came with version {LOW_STATES_SINCE} of the protocol; upgrade the worker"
    if precision.scales_loss and protocol_version < FP16_SINCE:
        return f"precision ({precision.name}) came with version {FP16_SINCE} of the protocol; upgrade the worker"
    if protocol_version < optimizer.since:
        return f"optimizer ({optimizer.kind}) came with version {optimizer.since} of the protocol; upgrade the worker"
    if workload.float8 is not None and protocol_version < FLOAT8_SINCE:
        return f"float8 ({workload.float8}) came with version {FLOAT8_SINCE} of the protocol; upgrade the worker"
    quantization = quantization_of(workload.adapter)
    if quantization is not None and protocol_version < QUANTIZATION_SINCE:
        # It would train beside weights that are not quantised.
        since = f"version {QUANTIZATION_SINCE} of the protocol"
        return f"adapter.quantization ({quantization}) came with {since}; upgrade the worker"
    try:
        expressed(task, protocol_version)
    except CannotExpress as error:
        return str(error)
    return None


def why_not_repeatable(
    workload: Workload, config: TrialConfig, protocol_version: int | None, *, has_short_steps: bool = False
) -> str | None:
    """Reason why a worker that speaks a protocol version cannot run a configuration again. None if it can, or if its
    version is not known yet (None), because its next request for work tells it.

    `has_short_steps`: whether the runs that it is compared with timed short steps (fewer micro batches), so that the
    repeated run must do so, too.
    """
    if protocol_version is None:
        return None
    if has_short_steps and protocol_version < SHORT_STEPS_SINCE:
        return f"short steps came with version {SHORT_STEPS_SINCE} of the protocol; upgrade the worker"
    return why_inexpressible(workload, workload, protocol_version) or why_inexpressible(
        workload, config, protocol_version
    )


def reads_runs_of(study: StudyRow, worker: WorkerRow) -> bool:
    """Whether a worker's protocol version can express the runs of a study's baseline."""
    if study.baseline is None:
        return True
    has_short_steps = study.parity_samples is not None
    workload, version = study.spec.workload, worker.protocol_version
    return why_not_repeatable(workload, study.baseline, version, has_short_steps=has_short_steps) is None
