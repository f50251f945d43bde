"""HTTP client of the service, for the command line and for scripts."""

from shardtune.service.client.api import ServiceClient
from shardtune.service.client.transport import NoService, ServiceError, ServiceRejected, ServiceUnreachable

__all__ = ["NoService", "ServiceClient", "ServiceError", "ServiceRejected", "ServiceUnreachable"]
