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
    """Facts about the ranks' environment that a launcher knows once it is prepared."""

    libraries: Mapping[str, JsonValue] | None = None
    """Facts about the libraries from `workers.rank.inventory`, collected in a process with the same environment as the
    ranks; None if the launcher has not collected any."""
    isolation: str = "none: ranks are started one by one"
    """Text `pid_namespace` if every process that a rank starts dies with the launcher's helper process; else the reason
    why PID namespaces cannot be used."""
    operators_built: bool | None = None
    """Whether torch's extension cache contains DeepSpeed's C++ operators; None if unknown."""


class LaunchFailed(Exception):
    """Exception for ranks that could not be started. The message names what to check."""


class RanksAlive(Exception):
    """Exception for ranks that survived SIGKILL, so that the devices are not free. No further trial may be started."""


@dataclass(frozen=True)
class RankExit:
    """End of one rank: its number and exit code."""

    rank: int
    code: int
    """Exit code of the rank; if a signal ended it, minus the number of the signal."""


@dataclass(frozen=True)
class LostProcess:
    """Host or helper process that a launcher lost during a launch."""

    message: str
    """Description of the lost host or process, such as `node n3 was silent for 6 s`."""
    is_node: bool = False
    """Whether a whole host was lost, for which the task is not to blame; false for a helper process of the launcher."""


class Launcher(Protocol):
    """Launcher of a trial's ranks, one trial at a time. All calls come from the main thread."""

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Prepare to launch ranks. This may take seconds the first time; it returns at once if the launcher is ready.

        Raises:
            LaunchFailed: the launcher cannot be made ready, or `give_up` ended the wait.
        """

    def launch(self, directory: Path, launch: Launch) -> None:
        """Start the ranks of a launch in the trial directory `directory`.

        Raises:
            LaunchFailed: no rank was started.
        """

    def wait(self, timeout_s: float) -> None:
        """Wait until a rank has started or ended, or until the timeout.

        Raises:
            LaunchFailed: it turned out that no rank was started.
        """

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order in which the launcher noticed them."""

    @property
    def lost(self) -> LostProcess | None:
        """Host or helper process that died during this launch; None if none did. The loss of a host may become known
        only after `kill`."""

    def kill(self) -> None:
        """End every process of the current launch and check that all have ended. Does nothing if none is left.

        Raises:
            RanksAlive: a process survived.
        """

    def conditions(self) -> Conditions:
        """Conditions on each host (such as load and throttling) during the last launch; call this after `kill`. Empty
        if nothing observes the hosts."""

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Wait until the devices of every host are healthy and free; call this while no rank runs.

        Raises:
            DevicesUnfit: a device is broken, or does not become free in time.
        """

    def close(self) -> None:
        """Kill the ranks, then end the launcher's helper processes."""


class Observer(Protocol):
    """Observer of one host's devices and load before and during a run; see `workers.machine.conditions`."""

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Wait until the host's devices are healthy and free; see `Launcher.require_fit`."""

    def begin(self) -> None:
        """Begin to observe the host just before the ranks start."""

    def conditions(self, directory: Path, launch: Launch) -> Conditions:
        """Conditions on the host (such as load and throttling) since `begin`; call this after the ranks have ended."""


class Unobserved:
    """Base class of a launcher that only starts and ends ranks and leaves the observation of the host to its caller."""

    def conditions(self) -> Conditions:
        """Return no conditions (load, throttling): the launcher's caller observes the host itself."""
        return Conditions()

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Do nothing: the launcher's caller checks the devices."""


class LocalRanks(Launcher, Protocol):
    """Launcher of the ranks on this host. The trial may have further ranks on other hosts."""

    def open_store(self, directory: Path, address: str, ports: range = ANY_PORT) -> int:
        """Serve the store through which ranks find each other, at one address of this host, until `kill`; returns its
        port. Call this before the launch.

        Raises:
            LaunchFailed: none of the ports is free, or the store did not start.
        """
