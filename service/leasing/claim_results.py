"""Worker's request for a run of one study, and the possible results of that request."""

from dataclasses import dataclass

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import Lease, LeaseRequest


@dataclass(frozen=True)
class WorkRequest:
    """Request of a worker for a run of one study; each start of a worker has a session."""

    session: str
    """Id of the worker session that asks for work; each start of a worker begins a new session."""
    ends_in_s: float | None = None
    """Seconds until the worker must end, for example because its Slurm job ends; None if unknown."""
    protocol_version: int = PROTOCOL_VERSION
    """Protocol version in which the worker's release reads leases."""

    @classmethod
    def of(cls, request: LeaseRequest) -> "WorkRequest":
        """Return the part of a worker's request for work that is needed to choose one of a study's runs for it."""
        return cls(request.session, request.ends_in_s, request.protocol_version)


@dataclass(frozen=True)
class Granted:
    """Result of a request for work: a run of the study was leased to the worker."""

    lease: Lease


@dataclass(frozen=True)
class NoRun:
    """Result of a request for work: the study has no run for this worker at the moment."""

    reserved_worker_ids: frozenset[str] = frozenset()
    """Ids of the workers for which a run of the study is reserved; usually there are none."""


@dataclass(frozen=True)
class StudyBusy:
    """Result of a request for work: another process is planning this study's next run, so it is not known yet whether
    the study has work.
    """


@dataclass(frozen=True)
class HostBusy:
    """Result of a request for work: a run suits the worker, but has to wait until the worker's host is less busy.
    Until then the worker gets no other run.
    """


@dataclass(frozen=True)
class NoWaitingRun:
    """Result of a request for work: no run that waits suits the worker, but the study may plan a new run for it."""
