"""Interface of launchers: prepare, start the ranks of one trial, watch them, end them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.workers.launch import ANY_PORT, Launch


@dataclass(frozen=True)
class Prepared:
    """Facts that a launcher knows once it can launch."""

    libraries: Mapping[str, JsonValue] | None = None
    """Facts of `workers.rank.inventory` from a process like the ranks'; None where the launcher has none yet."""
    isolation: str = "none: ranks are started one by one"
    """`pid_namespace`, in which every process that a rank starts dies with the launcher's helper; else why there is none."""
    operators_built: bool | None = None
    """Whether DeepSpeed's C++ operators are in the cache; None where unknown."""


class LaunchFailed(Exception):
    """Ranks could not be started; the message says what to look at."""


class RanksAlive(Exception):
    """Ranks survived SIGKILL, so that the devices are not free. No further trial may be started."""


@dataclass(frozen=True)
class RankExit:
    """End of one rank."""

    rank: int
    code: int
    """Exit code; negative: ended by that signal."""


@dataclass(frozen=True)
class LostProcess:
    """Host or helper process that a launcher lost during a launch."""

    message: str
    """Description such as `node n3 was silent for 6 s`."""
    is_node: bool = False
    """Whether a whole host was lost, which is no fault of the task; else a helper process of the launcher."""


class Launcher(Protocol):
    """Launcher of one trial's ranks at a time. All calls come from the main thread."""

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Get ready to launch, which may take seconds; cheap when ready already.

        Raises:
            LaunchFailed: it cannot be made ready, or `give_up` ended the wait.
        """

    def launch(self, directory: Path, launch: Launch) -> None:
        """Start the launch's ranks of the trial in `directory`.

        Raises:
            LaunchFailed: nothing was started.
        """

    def wait(self, timeout_s: float) -> None:
        """Return when a rank started or ended, or after the timeout.

        Raises:
            LaunchFailed: it turned out that nothing was started.
        """

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order in which they were noticed."""

    @property
    def lost(self) -> LostProcess | None:
        """Host or helper that died during this launch; the loss of a host may be known only after `kill`."""

    def kill(self) -> None:
        """End every process of the current launch and make sure of it; does nothing when none is left.

        Raises:
            RanksAlive: a process survived.
        """

    def conditions(self) -> Conditions:
        """Conditions on each host during the last launch, once it has been killed; empty where nothing observes them."""

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Return once the devices of every host are healthy and free; call it while no rank runs.

        Raises:
            DevicesUnfit: a device is not, and will not be soon.
        """

    def close(self) -> None:
        """Kill the ranks, then end the launcher's own helpers."""


class Observer(Protocol):
    """Observer of one host; see `workers.machine.conditions`."""

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Wait for fit devices; see `Launcher.require_fit`."""

    def begin(self) -> None:
        """Begin to observe: ranks start now."""

    def conditions(self, directory: Path, launch: Launch) -> Conditions:
        """Conditions since `begin`; call it after the ranks are gone."""


class Unobserved:
    """Base of a launcher that only starts and ends ranks: its caller observes the host."""

    def conditions(self) -> Conditions:
        """Empty conditions."""
        return Conditions()

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Do nothing: the caller checks the devices."""


class LocalRanks(Launcher, Protocol):
    """Launcher of ranks on this host, also of a part of a trial over several hosts."""

    def open_store(self, directory: Path, ports: range = ANY_PORT) -> int:
        """Serve a store for the rendezvous of several hosts' ranks, until `kill`; returns its port. Call it before the
        launch.

        Raises:
            LaunchFailed: none of the ports is free, or the store did not start.
        """
