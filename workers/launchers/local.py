"""Ranks on this machine: from a fork server where forking works, otherwise cold."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.workers.launch import ANY_PORT, Launch
from shardtune.workers.launchers import operators
from shardtune.workers.launchers.base import Lost, Observer, Prepared, RankExit
from shardtune.workers.launchers.cold import RANK_COMMAND, ColdLauncher
from shardtune.workers.launchers.fork_server import HOST_COMMAND, ForkServerLauncher, ForkUnsafe
from shardtune.workers.launchers.processes import DYING_S, kill_marked

log = logging.getLogger(__name__)


class LocalLauncher:
    """A `ForkServerLauncher` until the host says that forked ranks cannot work here, then a `ColdLauncher`."""

    def __init__(
        self,
        environment: Mapping[str, str],
        mark: str,
        log_path: Path,
        ready_timeout_s: float,
        cold: bool = False,
        dying_s: float = DYING_S,
        commands: tuple[Sequence[str], Sequence[str]] = (HOST_COMMAND, RANK_COMMAND),
        observer: Observer | None = None,
    ):
        """`dying_s`: how long killed ranks may take to be gone. `commands`: of the fork server and of a cold rank. `observer`:
        who looks at this host around each launch.
        """
        host, rank = commands
        self._environment, self._mark, self._observer = environment, mark, observer
        self._launched: tuple[Path, Launch] | None = None
        self._seen = Conditions()
        self._cold = ColdLauncher(environment, mark, rank, dying_s)
        self._current: ColdLauncher | ForkServerLauncher = (
            self._cold if cold else ForkServerLauncher(environment, mark, log_path, ready_timeout_s, host, dying_s)
        )
        # The devices are ours by lock, so what carries their mark is left from an agent that was killed.
        kill_marked(mark, dying_s=dying_s)

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch."""
        return self._current.exits

    @property
    def lost(self) -> Lost | None:
        """The fork server, when it died during this launch."""
        return self._current.lost

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Warm up; change to cold starts for good where forking is unsafe."""
        try:
            return self._current.prepare(give_up)
        except ForkUnsafe as error:
            log.warning("ranks are started cold, because forked ones would not work here: %s", error)
            self._current = self._cold
            return self._cold.prepare(give_up)

    def build_operators(self, work_dir: Path, give_up: Callable[[], bool]) -> None:
        """Build DeepSpeed's C++ operators with the ranks' environment, unless they are there."""
        operators.build(self._environment, self._mark, work_dir, give_up, operators.BUILD_COMMAND)

    def open_store(self, directory: Path, ports: range = ANY_PORT) -> int:
        """Serve a store for ranks of several hosts."""
        return self._current.open_store(directory, ports)

    def launch(self, directory: Path, launch: Launch) -> None:
        """Start the ranks."""
        self._launched, self._seen = (directory, launch), Conditions()
        if self._observer is not None:
            self._observer.begin()
        self._current.launch(directory, launch)

    def wait(self, timeout_s: float) -> None:
        """Wait for something to happen."""
        self._current.wait(timeout_s)

    def kill(self) -> None:
        """End the ranks, and see what happened meanwhile."""
        self._current.kill()
        if self._observer is not None and self._launched is not None:
            self._seen = self._observer.seen(*self._launched)
        self._launched = None

    def seen(self) -> Conditions:
        """What this host saw during the last launch."""
        return self._seen

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Wait until the devices are free."""
        if self._observer is not None:
            self._observer.require_fit(give_up)

    def close(self) -> None:
        """End everything."""
        self._current.close()
