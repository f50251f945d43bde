"""Pages and lists of a service with a finished study: no address, whatever its parameters, fails."""

import contextlib
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fastapi.testclient import TestClient

from shardtune.db.session import Database, upgrade
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.fuzz.inputs import addresses
from tests.fuzz.readers import Target
from tests.support.service.local_client import local_client
from tests.support.service.page_reader import HTML
from tests.support.service.scenarios import tune

_PATHS = (
    "/", "/studies", "/studies/{study}", "/studies/{study}/trials/{number}", "/compare", "/costs", "/new", "/schedules",
    "/settings", "/webhooks/{webhook}", "/workers", "/login", "/v1/studies", "/v1/studies/{study}/events", "/v1/best",
    "/v1/recommendations", "/v1/workers", "/v1/costs", "/v1/schedules", "/v1/retunes", "/v1/best:history",
)  # fmt: skip
_NAMES = (
    "q", "device", "page", "pick", "state", "limit", "page_token", "after", "project", "model", "cluster", "workload",
    "target_key", "to", "months", "created_from", "hardware", "sequence_length", "global_batch", "precision", "optimizer",
    "memory_headroom", "max_trials", "match", "lowest_confidence", "deleted", "gpus_per_node", "nodes", "loss",
)  # fmt: skip


@contextlib.contextmanager
def page_target() -> Iterator[Target]:
    """Target of addresses, while its service runs."""
    with tempfile.TemporaryDirectory(prefix="shardtune-fuzz-") as folder:
        url = f"sqlite:///{Path(folder) / 'fuzz.sqlite3'}"
        upgrade(url)
        context = Context(Database(url), Settings(database_url=url, sweep_s=3600, fingerprint_check_s=3600))
        with local_client(create_app(context=context, migrate=False), raise_server_exceptions=True) as client:
            study = tune(client)
            paths = [path.replace("{study}", study, 1) for path in _PATHS] + list(_PATHS)
            yield Target("pages", addresses(paths, _NAMES), partial(_open, client))


def _open(client: TestClient, address: bytes) -> None:
    response = client.get(address.decode(), headers=HTML, follow_redirects=False)
    assert response.status_code < 500, f"{response.status_code} {response.text[:300]}"
