"""A worker's request for a run of one study, and its possible results."""

from dataclasses import dataclass

from shardtune.api_schemas.trials.leases import Lease


@dataclass(frozen=True)
class WorkRequest:
    """A worker's request for work."""

    session: str
    """Id of the worker session: a new one is issued at each start of the worker."""
    ends_in_s: float | None = None
    """Seconds until the worker must end, for example at the end of its Slurm job; None: unknown."""


@dataclass(frozen=True)
class Granted:
    """A run of the study was leased to the worker."""

    lease: Lease


@dataclass(frozen=True)
class NoRun:
    """The study has no run for this worker now."""

    reserved_worker_ids: frozenset[str] = frozenset()
    """Ids of workers that have a run reserved for them; mostly empty."""


@dataclass(frozen=True)
class StudyBusy:
    """Another process is asking this study for its next run; the result is known when it is done."""


@dataclass(frozen=True)
class HostBusy:
    """A run waits for this worker until its host is less busy; until then the worker gets no other run."""


@dataclass(frozen=True)
class NoWaitingRun:
    """No waiting run suits the worker; the study may plan a new one."""
