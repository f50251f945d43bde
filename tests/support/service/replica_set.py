"""Several processes of the service on one database, as behind a load balancer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.service.replica import Replica


class Replicas:
    """Clients of several replicas; lookups go to the first."""

    def __init__(self, clients: list[httpx.Client], folder: Path) -> None:
        self.clients, self._folder = clients, folder

    def get(self, path: str, **params: Any) -> Any:
        """An answer as JSON."""
        answer = self.clients[0].get(path, params=params)
        assert answer.is_success, answer.text
        return answer.json()

    def logs(self) -> str:
        """Ends of all their logs."""
        return "\n".join(path.read_text()[-3000:] for path in sorted(self._folder.glob("replica-*.log")))


@contextmanager
def replicas_of(count: int, url: str, folder: Path, **settings: object) -> Iterator[Replicas]:
    """Start so many processes, ready to serve; `settings` as in service.settings."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(Replica(url, folder / f"replica-{number}.log", **settings)) for number in range(count)
        ]
        for replica in opened:
            replica.wait_until_ready()
        clients = [httpx.Client(base_url=replica.url, timeout=30, trust_env=False) for replica in opened]
        yield Replicas([stack.enter_context(client) for client in clients], folder)
