"""Agent's loop: register ▸ lease ▸ run ▸ report. The main thread launches and supervises; `heartbeat` renews.

The service decides what a result means; a lost lease ends the ranks, and nothing is reported.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable

from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import PROTOCOL_VERSION, Lease, LeaseRequest, Registered, Registration, Report
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent import words
from shardtune.workers.agent.analysis import diagnose
from shardtune.workers.agent.attempt import AttemptResult, Workplace, run_attempt
from shardtune.workers.agent.client import (
    ClientError,
    LeaseLost,
    RequestRejected,
    Unreachable,
    WorkerClient,
    call_patiently,
)
from shardtune.workers.agent.heartbeat import HeartbeatThread
from shardtune.workers.agent.send_traces import send_traces
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.clock import now_s
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.trial_dir import TrialDir, check_disk, prune

_LEASE_WAIT_S = 2.0
"""Seconds for which the service may keep a lease request open; the agent notices a signal after this time at the
latest."""
_RIVAL_WINDOW_S, _MOST_REGISTRATIONS = 60.0, 3

Result = Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | Diagnosis | Failure

log = logging.getLogger(__name__)


class Agent:
    """Agent of one worker: registers a worker session with the service and runs one leased attempt at a time."""

    def __init__(
        self,
        settings: WorkerSettings,
        client: WorkerClient,
        workplace: Workplace,
        inventory: Inventory,
        interrupt: Interrupt,
        inspect_again: Callable[[], Fingerprint | None] = lambda: None,
    ):
        """Prepare the agent; `inspect_again` returns the machine's present fingerprint (hardware and software
        versions), or None for no change."""
        self._settings = settings
        self._client = client
        self._workplace = workplace
        self._inventory = inventory
        self._interrupt = interrupt
        self._session = ""
        self._registered_s: list[float] = []
        self._inspect_again = inspect_again
        self._inspected_s = now_s()

    def run(self) -> None:
        """Register, then lease and run tasks until interrupted.

        Raises:
            RequestRejected: the service does not accept this worker, or another worker has its name.
            DiskFull, LaunchFailed, RanksAlive, DevicesUnfit: this machine cannot run trials; the agent leases no more.
        """
        if self._register() is None:
            return
        while not self._interrupt:
            # Before leasing: a machine that cannot work must not turn every trial it is given into a failure.
            check_disk(self._workplace.work_dir, self._workplace.min_free_gib)
            if self._workplace.acquire_devices is None and not self._workplace.is_ready(lambda: bool(self._interrupt)):
                return
            self._notice_changes()
            sent_at_s = now_s()
            lease = self._lease()
            if lease is not None:
                self._work_on(lease, sent_at_s)
                prune(self._workplace.work_dir, self._settings.keep_trials, self._settings.keep_failed)

    def _register(self, *, anew: bool = True) -> Registered | None:
        registration = Registration(
            protocol_version=PROTOCOL_VERSION,
            session=None if anew else self._session,
            name=self._settings.pool_name,
            inventory=self._inventory,
        )
        registered = call_patiently(
            lambda: self._client.register(registration), give_up=lambda: bool(self._interrupt), on_unreachable=_warn
        )
        if registered is not None:
            self._session = registered.session
            self._registered_s.append(now_s())
            log.info("registered as %s (%s)", registration.name, registered.worker_id)
        return registered

    def _notice_changes(self) -> None:
        """Register the worker again when its hardware, software versions or settings have changed."""
        # Only between runs: inspecting costs CPU time, and a change during a run is noticed before the next one.
        if now_s() - self._inspected_s < self._settings.look_again_s:
            return
        fingerprint, self._inspected_s = self._inspect_again(), now_s()
        if fingerprint is None or fingerprint == self._workplace.fingerprint:
            return
        log.warning(
            "the fingerprint has changed, registering again: %s", fingerprint.model_dump_json(exclude_none=True)
        )
        self._workplace = dataclasses.replace(self._workplace, fingerprint=fingerprint)
        self._inventory = self._inventory.model_copy(update={"fingerprint": fingerprint})
        try:
            self._register(anew=False)
        except LeaseLost as error:
            self._register_anew(error)

    def _lease(self) -> Lease | None:
        ends_in_s = self._workplace.ends_in_s()
        request = LeaseRequest(
            protocol_version=PROTOCOL_VERSION,
            session=self._session,
            wait_s=_LEASE_WAIT_S,
            ends_in_s=None if ends_in_s is None else max(0.0, ends_in_s),
        )
        try:
            # One request per call: the lease's clock starts at the time of sending.
            return self._client.lease(request)
        except Unreachable as error:
            _warn(error)
            # A rejection also shows that the service answers; the next lease request decides what it means.
            with contextlib.suppress(LeaseLost, RequestRejected):
                call_patiently(self._client.wait_ready, give_up=lambda: bool(self._interrupt))
        except LeaseLost as error:
            self._register_anew(error)
        return None

    def _register_anew(self, lost: LeaseLost) -> None:
        """Register again after the service lost this worker session, such as when its database was replaced.

        Raises:
            RequestRejected: it happened repeatedly within a minute.
        """
        log.warning("the service does not know this session (any more), registering again: %s", lost)
        # A live worker with our name closes our sessions as we close its: without a limit the two would do so for ever.
        recent = [moment for moment in self._registered_s if now_s() - moment < _RIVAL_WINDOW_S]
        if len(recent) > _MOST_REGISTRATIONS:
            raise RequestRejected(
                f"name ({self._settings.pool_name}) seems to belong to another live worker, which closes our sessions; "
                "stop one of the two, or give it another --name"
            )
        self._register()

    def _work_on(self, lease: Lease, sent_at_s: float) -> None:
        name = f"{lease.run_id}-{lease.attempt}"
        log.info("run %s, attempt %d: %s", lease.run_id, lease.attempt, words.task(lease))
        directory = TrialDir(self._workplace.work_dir / name)
        heartbeat = HeartbeatThread(
            self._client, self._session, lease, sent_at_s, progress=directory.progress, renewed=directory.write_deadline
        )

        def create() -> TrialDir:
            created = TrialDir.create(
                self._workplace.work_dir, name, lease.task, self._workplace.fingerprint, self._workplace.min_free_gib
            )
            created.write_deadline(heartbeat.ranks_end_s)
            return created

        def interrupted() -> str | None:
            return self._interrupt.reason or heartbeat.stop_reason

        limits = RunLimits(lease.deadline_s, lease.no_progress_s)
        heartbeat.start()
        try:
            with self._workplace.devices(lease.is_exclusive, lambda: bool(interrupted())) as are_ours:
                attempted = run_attempt(self._workplace, lease.task, create, limits, interrupted) if are_ours else None
            if attempted is not None:
                # Renewing goes on until the report is answered, so that a long retry does not cost the lease.
                self._report(lease, attempted)
            elif self._interrupt:
                self._release(lease)
            else:
                log.warning("run %s ended, nothing reported: %s", lease.run_id, heartbeat.stop_reason)
        except BaseException:
            self._release(lease)
            raise
        finally:
            heartbeat.finish()
            heartbeat.join(timeout=1.0)

    def _report(self, lease: Lease, attempted: AttemptResult) -> None:
        result: Result = attempted.result
        if isinstance(result, ProfilerRecording):
            result = send_traces(self._client, self._session, lease, diagnose(result))
        log.info("run %s: %s after %.1f s", lease.run_id, words.end(result), attempted.elapsed_s)
        try:
            self._deliver(lease, self._report_of(lease, attempted, result))
        except RequestRejected as error:
            # Without a report, the service would hand out the same attempt again, and reject its result again, without end.
            log.error("the result of run %s was rejected: %s", lease.run_id, error)
            failure = Failure(kind=FailureKind.SETUP, message=f"the service rejected the result: {error}"[:4000])
            self._deliver(lease, self._report_of(lease, dataclasses.replace(attempted, log_tail=None), failure))

    def _report_of(self, lease: Lease, attempted: AttemptResult, result: Result) -> Report:
        return Report(
            protocol_version=PROTOCOL_VERSION,
            session=self._session,
            attempt=lease.attempt,
            measurement=result if isinstance(result, Measurement) else None,
            model_summary=result if isinstance(result, ModelSummary) else None,
            resume_check=result if isinstance(result, ResumeMeasurement) else None,
            diagnosis=result if isinstance(result, Diagnosis) else None,
            failure=result if isinstance(result, Failure) else None,
            gpu_seconds=attempted.gpu_seconds,
            log_tail=attempted.log_tail,
        )

    def _deliver(self, lease: Lease, report: Report) -> None:
        """Send an attempt's report to the service until the service answers.

        Raises:
            RequestRejected: the service rejects the report's content.
        """
        try:
            answer = call_patiently(
                lambda: self._client.report(lease.run_id, report),
                give_up=lambda: bool(self._interrupt),
                on_unreachable=_warn,
            )
        except LeaseLost as error:
            log.warning("the result of run %s came too late: %s", lease.run_id, error)
        else:
            if answer is None:
                log.warning("stopped before the result of run %s was accepted", lease.run_id)

    def _release(self, lease: Lease) -> None:
        """Notify the service at once that no worker runs the run any more; if that request fails, the lease expires
        later."""
        reason = self._interrupt.reason or "the worker ended unexpectedly"
        failure = Failure(kind=FailureKind.WORKER_LOST, message=reason)
        try:
            self._client.report(lease.run_id, self._report_of(lease, AttemptResult(failure, 0.0, 0, None), failure))
        except ClientError as error:
            log.warning("could not release run %s: %s", lease.run_id, error)


def _warn(error: Unreachable) -> None:
    log.warning("the service does not answer, trying again: %s", error)
