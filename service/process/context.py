"""Dependencies of all rules of the service: the database, the settings, the time, and the sender of the request."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import Depends, Request

from shardtune.db.clock import utc_now
from shardtune.db.session import Database
from shardtune.service.observability.metrics import Metrics
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.process.dns_resolver import DnsResolver
from shardtune.service.process.event_signal import EventSignal, StreamLimits
from shardtune.service.process.fair_queue import FairQueue
from shardtune.service.process.hub_cache import HubCache
from shardtune.service.process.known_senders import KnownSenders
from shardtune.service.process.principal import LOCAL, Principal
from shardtune.service.process.request_rates import RequestRates
from shardtune.service.process.target_cache import TargetCache
from shardtune.service.process.usage_counts import UsageCounts
from shardtune.service.process.work_signal import WorkSignal
from shardtune.service.settings import Settings

_TRACE_READS = 4


class Stopping:
    """Flag that says whether the process is stopping; once set, it stays set."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Set the flag that the process is stopping."""
        self._is_set = True

    def __bool__(self) -> bool:
        return self._is_set


@dataclass
class _OnceTrue:
    """Cached conditions that never become false once they are true, such as "an API key exists"."""

    keys: bool = False


@dataclass(frozen=True)
class Context:
    """State of one service process; within a request, also the request's sender."""

    db: Database
    settings: Settings
    now: Callable[[], datetime] = utc_now
    """Function that returns the present time, used for all times that are stored: the database's clock in a service,
    another function in tests.
    """
    planner_cache: PlannerCache = field(default_factory=PlannerCache)
    known_targets: TargetCache = field(default_factory=TargetCache)
    work_signal: WorkSignal = field(default_factory=WorkSignal)
    event_signal: EventSignal = field(default_factory=EventSignal)
    stream_limits: StreamLimits = field(default_factory=StreamLimits)
    metrics: Metrics = field(default_factory=Metrics)
    stopping: Stopping = field(default_factory=Stopping)
    """Flag set on SIGTERM, upon which all waiting requests are answered at once."""
    usage_counts: UsageCounts = field(default_factory=UsageCounts)
    rates: RequestRates = field(default_factory=RequestRates)
    dns_resolver: DnsResolver = field(default_factory=DnsResolver)
    hub_cache: HubCache = field(default_factory=HubCache)
    known_senders: KnownSenders = field(default_factory=KnownSenders)
    trace_reads: FairQueue = field(default_factory=partial(FairQueue, _TRACE_READS, _TRACE_READS // 2))
    """Slots for downloads of raw traces, each for reading one piece of a trace. Other requests end their reading
    before their response begins and need none of these slots.
    """
    own_key_hash: str | None = None
    """Hash of the API key of a command (such as `shardtune tune`) that started this service only for its own use;
    None if the service was started on its own.
    """
    principal: Principal = LOCAL
    _once_true: _OnceTrue = field(default_factory=_OnceTrue)

    @classmethod
    def opened(cls, settings: Settings, own_key_hash: str | None = None) -> "Context":
        """Open the context of a process that serves requests, with a database connection that has time limits and
        gives the database's clock.
        """
        database = Database(settings.database_url, settings.database_limits)
        return cls(database, settings, database.clock, own_key_hash=own_key_hash)

    def has_keys(self, query: Callable[[], bool]) -> bool:
        """Whether an API key was ever created in this service."""
        # Once true it stays true, revoked keys included, so that the query is saved for every later request.
        self._once_true.keys = self._once_true.keys or query()
        return self._once_true.keys


def context_of(request: Request) -> Context:
    """Context of the process without a request's sender, for routes that need no API key."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


# Async although nothing waits in them: FastAPI runs each dependency that is not async in a thread, and beside busy
# threads
# each change of threads waits for the interpreter's lock.
async def _context_without_sender(request: Request) -> Context:
    return context_of(request)


async def _context_with_sender(request: Request) -> Context:
    """Context with the sender of the request. Fails if the route was declared without `dependencies=[requires(…)]`."""
    principal = getattr(request.state, "principal", None)
    assert isinstance(principal, Principal), "the route names no action: add dependencies=[requires(Action.…)]"
    return replace(context_of(request), principal=principal)


ContextDep = Annotated[Context, Depends(_context_with_sender)]
OpenContextDep = Annotated[Context, Depends(_context_without_sender)]
