"""The HTTP client of the service: `ServiceClient`, and the errors it raises."""

from shardtune.service.client import ServiceClient, ServiceError, ServiceRejected, ServiceUnreachable

__all__ = ["ServiceClient", "ServiceError", "ServiceRejected", "ServiceUnreachable"]
