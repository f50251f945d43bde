"""One value of every protocol message, and of every kind of task and result that a message carries."""

from typing import Any

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.protocol import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, ProtocolMessage
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.strategies.ddp import DdpConfig
from shardtune.api_schemas.strategies.fsdp1 import Fsdp1Config
from shardtune.api_schemas.strategies.fsdp2 import Fsdp2Config
from shardtune.api_schemas.strategies.zero import ZeroConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.trials import leases
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.progress import Progress
from tests.support.service.simulated_worker import (
    CLUSTER,
    FINGERPRINT,
    MODEL_SUMMARY,
    SPEC,
    diagnosis,
    measurement,
    rehearsed,
    restarted,
)

SESSION: dict[str, Any] = {"protocol_version": PROTOCOL_VERSION, "session": "session-0123456789"}
RUN: dict[str, Any] = SESSION | {"attempt": 1}
ADDED = {"lease_of_rehearsal": 2, "report_of_rehearsal": 2}
"""Messages with a kind of task that a version of the protocol added, by name."""
STUDY = StudySpec.model_validate(SPEC)


def _trial(strategy: Any) -> leases.TrialTask:
    return leases.TrialTask(
        model=STUDY.model, workload=STUDY.workload, cluster=CLUSTER, config=TrialConfig(strategy=strategy)
    )


def _lease(task: Any) -> leases.Lease:
    return leases.Lease(
        run_id="run-0123456789abcdef",
        attempt=1,
        study_id="study-0123456789ab",
        trial_number=None if isinstance(task, leases.ModelSummaryTask) else 0,
        task=task,
        lease_s=20,
        heartbeat_s=2,
        deadline_s=300,
        no_progress_s=60,
        quiet_wait=leases.QuietWait(most_s=600, most_foreign_cores=0.3) if isinstance(task, leases.TrialTask) else None,
    )


def _report(**result: Any) -> leases.Report:
    return leases.Report(gpu_seconds=6.0, **RUN, **result)


def sample_messages() -> dict[str, ProtocolMessage]:
    """Return the messages by a name that says what is in them."""
    trial = _trial(DdpConfig())
    rehearsal = leases.TargetRehearsalTask(trial=trial, parts=(leases.RehearsalTask(trial=trial),))
    failure = Failure(kind=FailureKind.OOM, message="out of memory", rank=1, conditions=Conditions())
    return {
        "registration": leases.Registration(
            protocol_version=PROTOCOL_VERSION,
            oldest_protocol_version=OLDEST_PROTOCOL_VERSION,
            release="0.1.0",
            name="gpu-host-1",
            inventory=Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT, task_kinds=leases.TASK_KINDS),
        ),
        "registered": leases.Registered(**SESSION, worker_id="worker-0123456789ab", lease_s=20, heartbeat_s=2),
        "lease_request": leases.LeaseRequest(**SESSION, wait_s=2, ends_in_s=3600),
        "lease_of_model_summary": _lease(leases.ModelSummaryTask(model=STUDY.model, workload=STUDY.workload)),
        "lease_of_ddp_trial": _lease(trial),
        "lease_of_fsdp1_trial": _lease(_trial(Fsdp1Config(dp_shard=2))),
        "lease_of_fsdp2_trial": _lease(_trial(Fsdp2Config(dp_shard=2))),
        "lease_of_zero_trial": _lease(_trial(ZeroConfig(stage=3))),
        "lease_of_resume_check": _lease(leases.ResumeTask(trial=trial)),
        "lease_of_trace": _lease(leases.TraceTask(trial=trial)),
        "unreadable_lease": leases.UnreadableLease(**RUN, message="task.config: Field required"),
        "heartbeat": leases.Heartbeat(**RUN, progress=Progress(phase="measuring", step=7, step_s=0.5, steps_left=3)),
        "heartbeat_answer": leases.HeartbeatAnswer(action="stop", reason="cancelled", lease_s=20),
        "report_of_measurement": _report(measurement=measurement(1000)),
        "report_of_model_summary": _report(model_summary=MODEL_SUMMARY),
        "report_of_resume_check": _report(resume_check=restarted()),
        "lease_of_rehearsal": _lease(rehearsal),
        "report_of_rehearsal": _report(rehearsal=rehearsed(rehearsal)),
        "report_of_diagnosis": _report(diagnosis=diagnosis()),
        "report_of_failure": _report(failure=failure, log_tail="the last lines"),
        "report_answer": leases.ReportAnswer(applied=True),
    }
