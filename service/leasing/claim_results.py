"""A worker's question for a run of one study, and what it comes to."""

from dataclasses import dataclass

from shardtune.api_schemas.trials.leases import Lease


@dataclass(frozen=True)
class Asking:
    """Who asks."""

    session: str
    """Of the worker's present life."""
    ends_in_s: float | None = None
    """Until it must end; None: nobody knows."""


@dataclass(frozen=True)
class Granted:
    """A run of the study is the worker's."""

    lease: Lease


@dataclass(frozen=True)
class Reserved:
    """Nothing for this worker now."""

    worker_ids: frozenset[str] = frozenset()
    """Workers for which something waits that is theirs alone; mostly nobody."""


@dataclass(frozen=True)
class Busy:
    """Another process asks there; what it leaves is known when it is done."""


@dataclass(frozen=True)
class HostBusy:
    """A run waits that the worker may have once more of its host is free; until then it gets no other."""


@dataclass(frozen=True)
class NoneWaits:
    """No run waits that the worker knows; the study may plan one."""
