"""Agent's loop: register ▸ lease ▸ run ▸ report. The main thread launches and supervises; `heartbeat` renews.

The service decides what a result means; a lost lease ends the ranks, and nothing is reported.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable

from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import Lease, LeaseRequest, Report
from shardtune.workers.agent import words
from shardtune.workers.agent.analysis import diagnose
from shardtune.workers.agent.attempt import AttemptResult, Workplace, run_attempt
from shardtune.workers.agent.client import WorkerClient, backoff_s, call_patiently, sleep_for
from shardtune.workers.agent.client_errors import (
    ClientError,
    LeaseLost,
    LeaseUnreadable,
    RequestRejected,
    Unreachable,
    VersionRejected,
)
from shardtune.workers.agent.heartbeat import HeartbeatThread
from shardtune.workers.agent.idle_limit import IdleLimit
from shardtune.workers.agent.quiet_wait import Waiter
from shardtune.workers.agent.report_message import Result, report_message
from shardtune.workers.agent.send_traces import send_traces
from shardtune.workers.agent.session import WorkerSession, warn_unreachable
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.clock import now_s
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.trial_dir import TrialDir, check_disk, prune

_LEASE_WAIT_S = 2.0
"""Seconds for which the service may keep a lease request open while there is no work. The agent notices a signal at the
latest after this time."""

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
        self._idle = IdleLimit(settings.exit_when_idle_minutes)
        self._unanswered = IdleLimit(settings.exit_when_idle_minutes)
        self._pauses_s = backoff_s()
        self._session = WorkerSession(client, settings.pool_name, self._gives_up)
        self._inspect_again = inspect_again
        self._inspected_s = now_s()

    def run(self) -> None:
        """Register, then lease and run tasks until interrupted, or until there was no run for as long as allowed.

        Raises:
            RequestRejected: the service does not accept this worker, or another worker has its name.
            Unreachable: the service does not answer, and the worker was without a run for as long as allowed.
            DiskFull, LaunchFailed, RanksAlive, DevicesUnfit: this machine cannot run trials; the agent leases no more.
        """
        self._idle.restart()
        # First: a killed agent's checkpoint may be what fills the disk, without whose space no run begins.
        prune(self._workplace.work_dir, self._settings.keep_trials, self._settings.keep_failed)
        self._check_answered(self._session.register(self._inventory))
        while not self._interrupt:
            # Before leasing: a machine that cannot work must not turn every trial it is given into a failure.
            check_disk(self._workplace.work_dir, self._workplace.min_free_gib)
            if self._workplace.acquire_devices is None and not self._workplace.is_ready(lambda: bool(self._interrupt)):
                return
            self._notice_changes()
            sent_at_s = now_s()
            try:
                # One request per call: the lease's clock starts at the time of sending.
                lease = self._client.lease(self._lease_request())
            except (Unreachable, LeaseUnreadable, LeaseLost, VersionRejected) as error:
                # No end here, whatever the time: a lease whose response was lost may be this worker's.
                self._recover(error)
                continue
            self._unanswered.restart()
            self._pauses_s = backoff_s()
            if lease is not None:
                self._work_on(lease, sent_at_s)
                prune(self._workplace.work_dir, self._settings.keep_trials, self._settings.keep_failed)
                self._idle.restart()
            elif self._idle.is_over:
                log.info("%s: the worker ends", self._idle.describe())
                return

    def _gives_up(self) -> bool:
        """Whether the agent should stop waiting for a service that does not answer."""
        return bool(self._interrupt) or self._idle.is_over

    def _check_answered(self, answer: object) -> None:
        """Raise Unreachable if the wait for the service's answer ended without an answer, unless a signal ended the wait."""
        if answer is None and not self._interrupt:
            raise Unreachable(f"service ({self._settings.service}) does not answer, and {self._idle.describe()}")

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
        self._check_answered(self._session.send_inventory(self._inventory))

    def _lease_request(self) -> LeaseRequest:
        ends_in_s = self._workplace.ends_in_s()
        return LeaseRequest(
            protocol_version=self._session.protocol_version,
            session=self._session.id,
            wait_s=_LEASE_WAIT_S,
            ends_in_s=None if ends_in_s is None else max(0.0, ends_in_s),
        )

    def _recover(self, error: ClientError) -> None:
        """Prepare the next lease request after one whose answer was missing, unreadable or an error."""
        if isinstance(error, LeaseUnreadable):
            self._unanswered.restart()
            self._session.hand_back_unread(error)
        elif isinstance(error, Unreachable):
            warn_unreachable(error)
            # A service may be ready and yet answer no lease request: a rented machine must not wait for it without end.
            self._check_answered(None if self._idle.is_over and self._unanswered.is_over else True)
            # A rejection also shows that the service answers; the next lease request decides what it means.
            with contextlib.suppress(LeaseLost, RequestRejected):
                self._check_answered(call_patiently(self._client.wait_ready, give_up=self._gives_up))
            # A service that is ready and still answers no lease request would be asked hundreds of times a second.
            sleep_for(next(self._pauses_s), self._gives_up)
        else:
            self._check_answered(self._session.register_anew(self._inventory, error))

    def _work_on(self, lease: Lease, sent_at_s: float) -> None:
        name = f"{lease.run_id}-{lease.attempt}"
        log.info("run %s, attempt %d: %s", lease.run_id, lease.attempt, words.task(lease))
        directory, waiter = TrialDir(self._workplace.work_dir / name), Waiter(lease.quiet_wait)
        heartbeat = HeartbeatThread(
            self._client,
            self._session.id,
            lease,
            sent_at_s,
            progress=lambda: waiter.with_wait(directory.progress() or self._workplace.progress),
            renewed=directory.write_deadline,
            protocol_version=self._session.protocol_version,
        )

        def create() -> TrialDir:
            created = TrialDir.create(
                self._workplace.work_dir, name, lease.task, self._workplace.fingerprint, self._workplace.min_free_gib
            )
            created.write_deadline(heartbeat.ranks_end_s)
            return created

        def interrupted() -> str | None:
            return self._interrupt.reason or heartbeat.stop_reason

        limits, must_end = RunLimits(lease.deadline_s, lease.no_progress_s), lambda: bool(interrupted())
        heartbeat.start()
        try:
            with self._workplace.devices(lease.is_exclusive, must_end) as are_ours:
                if are_ours:
                    self._workplace.build_operators(lease.task, must_end)
                    # Last, and with the devices: what this worker's neighbours run would not be quiet for this run either.
                    waiter.wait(must_end)
                may_run = are_ours and not interrupted()
                attempted = run_attempt(self._workplace, lease.task, create, limits, interrupted) if may_run else None
            result = self._result_of(lease, attempted, must_end) if attempted is not None else None
            if attempted is not None and result is not None:
                # Renewing goes on until the report is answered, so that a long retry does not cost the lease.
                self._report(lease, attempted, result, waiter.waited_s)
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

    def _result_of(self, lease: Lease, attempted: AttemptResult, must_end: Callable[[], bool]) -> Result | None:
        """Result to report of an attempt; of traces, it is their diagnosis. None when `must_end` ended the analysis."""
        if not isinstance(attempted.result, ProfilerRecording):
            return attempted.result
        diagnosis = diagnose(attempted.result, give_up=must_end)
        return None if diagnosis is None else send_traces(self._client, self._session.id, lease, diagnosis)

    def _report(self, lease: Lease, attempted: AttemptResult, result: Result, waited_s: float | None) -> None:
        log.info("run %s: %s after %.1f s", lease.run_id, words.end(result), attempted.elapsed_s)
        try:
            self._deliver(lease, report_message(self._session, lease, attempted, result, waited_s))
        except RequestRejected as error:
            # Without a report, the service would hand out the same attempt again, and reject its result again, without end.
            log.error("the result of run %s was rejected: %s", lease.run_id, error)
            failure = Failure(kind=FailureKind.SETUP, message=f"the service rejected the result: {error}"[:4000])
            attempted = dataclasses.replace(attempted, log_tail=None)
            self._deliver(lease, report_message(self._session, lease, attempted, failure, waited_s))

    def _deliver(self, lease: Lease, report: Report) -> None:
        """Send an attempt's report to the service again and again until the service answers.

        Raises:
            RequestRejected: the service rejects the report's content.
            Unreachable: the service did not answer for as long as this worker may be without a run.
        """
        # When it is over, the lease has expired, and another worker repeats the run.
        undelivered = IdleLimit(self._settings.exit_when_idle_minutes)
        try:
            answer = call_patiently(
                lambda: self._client.report(lease.run_id, report),
                give_up=lambda: bool(self._interrupt) or undelivered.is_over,
                on_unreachable=warn_unreachable,
            )
        except (LeaseLost, VersionRejected) as error:
            log.warning("the result of run %s came too late: %s", lease.run_id, error)
            return
        if answer is None:
            if not self._interrupt:
                raise Unreachable(f"service ({self._settings.service}) did not accept the result of run {lease.run_id}")
            log.warning("stopped before the result of run %s was accepted", lease.run_id)

    def _release(self, lease: Lease) -> None:
        """Notify the service at once that this worker no longer executes the run. If the request fails, the service
        learns it later, when the lease expires."""
        reason = self._interrupt.reason or "the worker ended unexpectedly"
        failure = Failure(kind=FailureKind.WORKER_LOST, message=reason)
        try:
            nothing = AttemptResult(failure, 0.0, 0, None)
            self._client.report(lease.run_id, report_message(self._session, lease, nothing, failure))
        except ClientError as error:
            log.warning("could not release run %s: %s", lease.run_id, error)
