"""Part of a launch on this host: its folder, its ranks, and the messages to the agent about them."""

import shutil
import threading
from pathlib import Path

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.gang.messages import HelperLost, LaunchEnded, LaunchOrder, LaunchRejected, RankEnded, StageOrder
from shardtune.workers.launch import ANY_PORT
from shardtune.workers.launchers.base import LocalRanks, RankExit, RanksAlive
from shardtune.workers.launchers.operators import OperatorBuild
from shardtune.workers.node.agent_line import AgentConnection
from shardtune.workers.trial_dir import TrialDir, check_disk, prune


class NodeLaunch:
    """Part of a launch that runs on this host, from the preparation of the launch's folder to the end of the host's
    ranks."""

    def __init__(
        self,
        settings: WorkerSettings,
        allowed: Allowed,
        launcher: LocalRanks,
        line: AgentConnection,
        operator_build: OperatorBuild | None = None,
    ) -> None:
        self._settings, self._allowed, self._launcher, self._line = settings, allowed, launcher, line
        self._operator_build = operator_build
        self._directory: TrialDir | None = None
        self._directory_lock = threading.Lock()
        self._order: int | None = None
        self._sent_exits, self._is_loss_sent = 0, False

    def move_deadline(self, ranks_end_s: float) -> None:
        """Change the deadline of this host's ranks. A thread calls this whenever the agent has answered a heartbeat."""
        with self._directory_lock:
            if self._directory is not None:
                self._directory.write_deadline(ranks_end_s)

    def stage(self, order: StageOrder) -> int | None:
        """Prepare the launch's folder; if the ranks meet on this host, also start the rendezvous store, and return its
        port.

        Raises:
            DiskFull, ValueError, OSError, LaunchFailed: the launch cannot be prepared on this host.
        """
        root = self._settings.work_dir
        with self._directory_lock:
            # The folder of the previous launch may be removed below, and the deadline must not be written into it meanwhile.
            self._directory = None
        if not order.resumes:
            # The agent's host records how a launch ended; on this host all folders count as failed.
            prune(root, 0, self._settings.keep_trials)
        self._directory = directory = self._folder(order, root)
        directory.write_deadline(self._line.ranks_end_s)
        if order.store_address is None:
            return None
        ports = ANY_PORT if order.ports is None else range(order.ports[0], order.ports[1] + 1)
        return self._launcher.open_store(directory.path, order.store_address, ports)

    def _folder(self, order: StageOrder, root: Path) -> TrialDir:
        if order.resumes:
            directory = TrialDir(root / order.name)
            directory.begin_resume_phase()
            return directory
        if order.task is None:
            check_disk(root, self._settings.min_free_gib)
            shutil.rmtree(root / order.name, ignore_errors=True)
            (root / order.name).mkdir()
            return TrialDir(root / order.name)
        self._allowed.check(order.task.model)
        if self._operator_build is not None:
            self._operator_build.require_built(order.task)
        directory = TrialDir.create(root, order.name, order.task, order.fingerprint, self._settings.min_free_gib)
        if order.task.model.script is not None:
            directory.write_script(self._allowed.scripts[order.task.model.script])
        return directory

    def start(self, order: LaunchOrder) -> None:
        """Start the ranks of the launch that this host has prepared.

        Raises:
            LaunchFailed: no rank was started.
        """
        assert self._directory is not None, "stage first"
        self._order, self._sent_exits, self._is_loss_sent = order.order, 0, False
        self._launcher.launch(self._directory.path, order.launch)

    @property
    def is_running(self) -> bool:
        """Whether a launch is in progress on this host."""
        return self._order is not None

    def send_events(self, timeout_s: float) -> None:
        """Wait for events of this host's ranks, such as their ends, and send them to the agent.

        Raises:
            LaunchFailed: the ranks could not be started after all.
        """
        self._launcher.wait(timeout_s)
        self._send_events()
        lost = self._launcher.lost
        if lost is not None and not self._is_loss_sent:
            assert self._order is not None
            self._is_loss_sent = True
            self._line.send(HelperLost(order=self._order, message=lost.message))

    def reject(self, reason: str) -> None:
        """Report to the agent that the ranks could not be started; the agent then ends the launch."""
        assert self._order is not None
        self._line.send(LaunchRejected(order=self._order, reason=reason[:8000]))
        self._order = None

    def _send_events(self) -> None:
        assert self._directory is not None
        stamp = self._directory.progress_stamp() or 0
        if stamp != self._line.progress_change[0]:
            self._line.progress_change = (stamp, self._directory.progress())
        for end in self._launcher.exits[self._sent_exits :]:
            self._sent_exits += 1
            self._line.send(self._rank_ended(end, self._directory))

    def _rank_ended(self, end: RankExit, directory: TrialDir) -> RankEnded:
        assert self._order is not None
        report = directory.report(end.rank)
        if report is not None and end.rank:
            # Equal on all ranks, since they are global figures: only rank 0's are sent, which keeps the messages small.
            report = report.model_copy(update={"trajectory": (), "losses": (), "warmup_step_times_s": ()})
        return RankEnded(
            order=self._order,
            rank=end.rank,
            code=end.code,
            report=report,
            model_summary=directory.model_summary() if end.rank == 0 else None,
            rehearsal=directory.rehearsal() if end.rank == 0 else None,
            measured=_measured(directory) if end.rank == 0 else None,
            log_tail=directory.log_tail(end.rank) if end.code else None,
        )

    def end(self, order: int) -> LaunchEnded:
        """End the ranks and every process that they have started."""
        survivors = None
        try:
            self._launcher.kill()
        except RanksAlive as error:
            survivors = str(error)
        if self._order is not None:
            self._send_events()
        self._order, self._line.progress_change = None, (0, None)
        return LaunchEnded(order=order, survivors=survivors, conditions=self._launcher.conditions())


def _measured(directory: TrialDir) -> MeasuredHardware | None:
    path = directory.path / "hardware.json"
    return MeasuredHardware.model_validate_json(path.read_bytes()) if path.exists() else None
