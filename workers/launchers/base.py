"""What every launcher can do: be made ready, start the ranks of one trial, watch them, end them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.workers.launch import ANY_PORT, Launch


@dataclass(frozen=True)
class Prepared:
    """What a launcher knows once it can launch."""

    libraries: Mapping[str, JsonValue] | None = None
    """What `workers.rank.inventory` says in a process like the ranks'; None where the launcher has none yet."""
    isolation: str = "none: ranks are started one by one"
    """`pid_namespace`: whatever a rank starts dies with the launcher's helper; else why there is none."""
    operators_built: bool | None = None
    """Whether DeepSpeed's C++ operators lie in the cache; None where it was not looked."""


class LaunchFailed(Exception):
    """Ranks could not be started; the message says what to look at."""


class RanksAlive(Exception):
    """Ranks survived SIGKILL, so the devices are not free. No further trial may be started."""


@dataclass(frozen=True)
class RankExit:
    """The end of one rank."""

    rank: int
    code: int
    """Exit code; negative: ended by that signal."""


@dataclass(frozen=True)
class Lost:
    """What a launcher lost under the ranks."""

    message: str
    """In words, such as `node n3 was silent for 6 s`."""
    is_node: bool = False
    """A whole host, which is no fault of what ran there; else a helper of the launcher's own."""


class Launcher(Protocol):
    """Starts the ranks of one trial at a time. All calls come from the main thread."""

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Get ready to launch, which may take seconds; cheap when ready already.

        Raises:
            LaunchFailed: it cannot be made ready, or `give_up` said so.
        """

    def launch(self, directory: Path, launch: Launch) -> None:
        """Start these ranks of the trial in `directory`.

        Raises:
            LaunchFailed: nothing was started.
        """

    def wait(self, timeout_s: float) -> None:
        """Return when something happened to a rank, or after the timeout.

        Raises:
            LaunchFailed: it turned out that nothing was started.
        """

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order they were seen."""

    @property
    def lost(self) -> Lost | None:
        """What died under the ranks of this launch; where that is a host, it may be known only after `kill`."""

    def kill(self) -> None:
        """End every process of the current launch and make sure of it; does nothing when none is left.

        Raises:
            RanksAlive: something survived.
        """

    def seen(self) -> Conditions:
        """What each host saw during the last launch, once it has been killed; nothing where nobody looks."""

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Return once the devices of every host are whole and free; while no rank runs.

        Raises:
            DevicesUnfit: one is not, and will not be soon.
        """

    def close(self) -> None:
        """`kill`, then end the launcher's own helpers."""


class Observer(Protocol):
    """Eyes on one host; see `workers.machine.conditions`."""

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """As the launcher's."""

    def begin(self) -> None:
        """Ranks start now."""

    def seen(self, directory: Path, launch: Launch) -> Conditions:
        """Since then; the ranks are gone."""


class Unobserved:
    """Of a launcher that only starts and ends ranks: whoever uses it looks at the host."""

    def seen(self) -> Conditions:
        """Nobody looks."""
        return Conditions()

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Nobody looks."""


class LocalRanks(Launcher, Protocol):
    """Starts ranks on this host, also some of a trial that other hosts take part in."""

    def open_store(self, directory: Path, ports: range = ANY_PORT) -> int:
        """Before the launch: serve a store in which ranks of several hosts meet, until `kill`; its port.

        Raises:
            LaunchFailed: none of the ports is free, or the store did not start.
        """
