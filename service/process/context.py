"""What every rule of the service needs: the database, the settings, the time, and who asks."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from shardtune.db.clock import utc_now
from shardtune.db.session import Database
from shardtune.service.observability.metrics import Metrics
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.process.dns_resolver import LookUps
from shardtune.service.process.event_signal import EventSignal, StreamLimits
from shardtune.service.process.known_senders import KnownSenders
from shardtune.service.process.principal import LOCAL, Principal
from shardtune.service.process.request_rates import RequestRates
from shardtune.service.process.target_cache import KnownTargets
from shardtune.service.process.usage_counts import Uses
from shardtune.service.process.work_signal import WorkSignal
from shardtune.service.settings import Settings


class Stopping:
    """A flag, once set for good."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """The process is to end."""
        self._is_set = True

    def __bool__(self) -> bool:
        return self._is_set


@dataclass
class _Seen:
    """What never becomes false again."""

    keys: bool = False


@dataclass(frozen=True)
class Context:
    """One service process; for the length of a request, with its sender."""

    db: Database
    settings: Settings
    now: Callable[[], datetime] = utc_now
    """The clock of everything that is stored: in a service the database's. Tests turn their own."""
    planner_cache: PlannerCache = field(default_factory=PlannerCache)
    cases: KnownTargets = field(default_factory=KnownTargets)
    work_signal: WorkSignal = field(default_factory=WorkSignal)
    event_signal: EventSignal = field(default_factory=EventSignal)
    stream_limits: StreamLimits = field(default_factory=StreamLimits)
    metrics: Metrics = field(default_factory=Metrics)
    stopping: Stopping = field(default_factory=Stopping)
    """Set by the signal to end: whatever waits is answered now."""
    uses: Uses = field(default_factory=Uses)
    rates: RequestRates = field(default_factory=RequestRates)
    look_ups: LookUps = field(default_factory=LookUps)
    senders: KnownSenders = field(default_factory=KnownSenders)
    principal: Principal = LOCAL
    _seen: _Seen = field(default_factory=_Seen)

    @classmethod
    def opened(cls, settings: Settings) -> "Context":
        """Of a process that serves: on its database, within its limits and by its clock."""
        database = Database(settings.database_url, settings.database_limits)
        return cls(database, settings, database.clock)

    def has_keys(self, look: Callable[[], bool]) -> bool:
        """Whether a key was ever made; once seen, not looked for again."""
        self._seen.keys = self._seen.keys or look()
        return self._seen.keys


def context_of(request: Request) -> Context:
    """The process's context, whoever asks: for routes that need no key."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


# Both async, though nothing waits in them: FastAPI takes a thread for each dependency that is not, and beside threads at
# work each change of threads waits for the interpreter.
async def _opened(request: Request) -> Context:
    return context_of(request)


async def _of_sender(request: Request) -> Context:
    """The context with the sender of the request. Fails where the route forgot `dependencies=[requires(…)]`."""
    principal = getattr(request.state, "principal", None)
    assert isinstance(principal, Principal), "the route names no action: add dependencies=[requires(Action.…)]"
    return replace(context_of(request), principal=principal)


InContext = Annotated[Context, Depends(_of_sender)]
InOpenContext = Annotated[Context, Depends(_opened)]
