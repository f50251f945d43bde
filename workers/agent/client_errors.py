"""Errors of the client of the worker protocol.

ClientError
├── Unreachable     no answer, or a temporary refusal (408, 425, 429, 5xx, a key that is being rotated): try again
├── LeaseLost       the run is no longer this worker's (404, 409, 410): kill the ranks, report nothing
├── LeaseUnreadable a lease of another release, with fields that this one cannot read: hand the run back
└── RequestRejected any other 4xx: the same request would be rejected again
    └── VersionRejected  the service does not read the agreed protocol version any more: register again
"""


class ClientError(Exception):
    """Request to the service that did not succeed; base class of the client's errors."""


class Unreachable(ClientError):
    """Exception for a service that did not answer, or cannot answer now."""


class LeaseLost(ClientError):
    """Exception for a lost lease: the service does not, or no longer, know this worker's session or this attempt."""


class RequestRejected(ClientError):
    """Exception for a request that the service rejected as invalid or not permitted. The same request would be rejected
    again."""


class VersionRejected(RequestRejected):
    """Exception for a message in a protocol version that the service does not read, for example after the service was
    replaced by another release."""


class LeaseUnreadable(ClientError):
    """Exception for a lease of a run that the service sent in a form that this release cannot read."""

    def __init__(self, run_id: str, attempt: int, message: str) -> None:
        super().__init__(message)
        self.run_id, self.attempt = run_id, attempt
