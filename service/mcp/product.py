"""Functions of the product that tools call: computed here or by a service, and the client of a service."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.client import ServiceClient
from shardtune.service.mcp.errors import ToolRejected

_PROCESS_KEY = secrets.token_bytes(32)


def _process_key() -> bytes:
    return _PROCESS_KEY


@dataclass(frozen=True)
class Product:
    """Shardtune's functions that one MCP tool call may use."""

    predict: Callable[[PredictionRequest], PredictionTable]
    plan: Callable[[PlanRequest], Plan]
    diagnose_folder: Callable[[Path], Diagnosis] | None = None
    """Function that diagnoses a folder of traces. None in a service, whose users must not read its files."""
    client: ServiceClient | None = None
    """Client of the service that stores studies; None without one."""
    confirmation_key: Callable[[], bytes] = _process_key
    """Function that returns the key which signs confirmation codes. The default key is lost when this process ends."""

    def service(self, tool: str) -> ServiceClient:
        """Return the client of the service.

        Raises:
            ToolRejected: there is no service.
        """
        if self.client is None:
            raise ToolRejected(
                f"tool ({tool}) needs a service, which stores the studies; restart this server as "
                "`shardtune mcp --service URL` (`shardtune serve` starts a service)"
            )
        return self.client


def product_of_service(
    client: ServiceClient,
    diagnose_folder: Callable[[Path], Diagnosis] | None = None,
    confirmation_key: Callable[[], bytes] = _process_key,
) -> Product:
    """Return the functions that MCP tools call if a service is given. The service's predictions use rates and
    calibrations that its workers measured."""
    return Product(client.predict, client.plan, diagnose_folder, client, confirmation_key)
