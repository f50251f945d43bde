"""Launcher of ranks on this machine: by a fork server where forking works, otherwise in fresh interpreters."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.workers.launch import ANY_PORT, Launch, rendezvous
from shardtune.workers.launchers import extension_locks, operators
from shardtune.workers.launchers.base import LostProcess, Observer, Prepared, RankExit
from shardtune.workers.launchers.cold import RANK_COMMAND, ColdLauncher
from shardtune.workers.launchers.fork_server import FORK_SERVER_COMMAND, ForkServerLauncher, ForkUnsafe
from shardtune.workers.launchers.processes import DYING_S, kill_tagged
from shardtune.workers.launchers.silent_work import SilentWork
from shardtune.workers.trial_dir import TrialDir

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"


class LocalLauncher:
    """Launcher that uses a `ForkServerLauncher`. Once the fork server finds that forking cannot work on this machine,
    it uses a `ColdLauncher` (which starts fresh interpreters)."""

    def __init__(
        self,
        environment: Mapping[str, str],
        launch_tag: str,
        log_path: Path,
        ready_timeout_s: float,
        cold: bool = False,
        dying_s: float = DYING_S,
        commands: tuple[Sequence[str], Sequence[str]] = (FORK_SERVER_COMMAND, RANK_COMMAND),
        observer: Observer | None = None,
    ):
        """Prepare the launcher, and kill processes that an earlier agent left behind.

        Args:
            dying_s: seconds that killed ranks may take to disappear.
            commands: command of the fork server, and command of a rank that is started without it.
            observer: observer of this host (load, throttling, GPUs) around each launch.
        """
        server_command, rank_command = commands
        self._environment, self._launch_tag, self._observer = environment, launch_tag, observer
        self._launched: tuple[Path, Launch] | None = None
        self._silent_work = SilentWork(launch_tag)
        self._conditions = Conditions()
        self._cold = ColdLauncher(environment, launch_tag, rank_command, dying_s)
        self._current: ColdLauncher | ForkServerLauncher = (
            self._cold
            if cold
            else ForkServerLauncher(environment, launch_tag, log_path, ready_timeout_s, server_command, dying_s)
        )
        # The devices are this agent's by lock, so processes with their tag were left by an agent that was killed.
        kill_tagged(launch_tag, dying_s=dying_s)

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order in which the launcher noticed them."""
        return self._current.exits

    @property
    def lost(self) -> LostProcess | None:
        """Fork server or rank that was lost during this launch; None if none was."""
        return self._current.lost

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Start the fork server and wait until it is ready. If forking is unsafe here, use fresh interpreters from now
        on."""
        try:
            return self._current.prepare(give_up)
        except ForkUnsafe as error:
            log.warning("ranks are started cold, because forked ranks would not work here: %s", error)
            self._current = self._cold
            return self._cold.prepare(give_up)

    def build_operators(self, work_dir: Path, give_up: Callable[[], bool]) -> str | None:
        """Build DeepSpeed's C++ operators in the environment of the ranks, unless they are built already. Returns the
        reason why they were not built, or None."""
        return operators.build(self._environment, self._launch_tag, work_dir, give_up, operators.BUILD_COMMAND)

    def open_store(self, directory: Path, address: str, ports: range = ANY_PORT) -> int:
        """Serve the store through which ranks of several hosts find each other; returns its port."""
        return self._current.open_store(directory, address, ports)

    def launch(self, directory: Path, launch: Launch) -> None:
        """Start the ranks of a launch on this machine."""
        self._launched, self._conditions = (directory, launch), Conditions()
        self._silent_work = SilentWork(self._launch_tag)
        if self._observer is not None:
            self._observer.begin()
        # Before any rank starts: one that waits for such a lock would load what the killed build did not finish.
        for lock in extension_locks.remove_stale(self._environment):
            log.warning("removed %s, which a killed build left: each later build would have waited for it", lock)
        self._current.launch(directory, self._with_store(directory, launch))

    def _with_store(self, directory: Path, launch: Launch) -> Launch:
        """Copy of the launch with a rendezvous store at a loopback address, if the ranks run a user's script and the
        launch has no store yet.

        Otherwise rank 0 of the script would open a store at all addresses of the host. Ranks that run no script need no
        store, as they find each other through a file.
        """
        if not TrialDir(directory).has_script or launch.has_rendezvous:
            return launch
        port = self._current.open_store(directory, _LOOPBACK)
        variables = {**launch.environment, **rendezvous(_LOOPBACK, port)}
        return launch.model_copy(update={"environment": variables})

    def wait(self, timeout_s: float) -> None:
        """Wait until a rank has started or ended, or until the timeout. Ranks that work and cannot say so make progress."""
        self._current.wait(timeout_s)
        if self._launched is not None:
            self._silent_work.renew_progress(TrialDir(self._launched[0]))

    def kill(self) -> None:
        """End the ranks, and collect the host's conditions (such as load and throttling) since the launch."""
        self._current.kill()
        if self._observer is not None and self._launched is not None:
            self._conditions = self._observer.conditions(*self._launched)
        self._launched = None

    def conditions(self) -> Conditions:
        """Conditions (such as load and throttling) that this host observed during the last launch."""
        return self._conditions

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Wait until this host's devices are healthy and free."""
        if self._observer is not None:
            self._observer.require_fit(give_up)

    def close(self) -> None:
        """End the ranks and the launcher's helper processes."""
        self._current.close()
