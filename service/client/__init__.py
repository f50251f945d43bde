"""The HTTP client of our own service, for the command line and for scripts."""

from service.client.api import ServiceClient
from service.client.transport import ServiceError, ServiceRefused, ServiceUnreachable

__all__ = ["ServiceClient", "ServiceError", "ServiceRefused", "ServiceUnreachable"]
