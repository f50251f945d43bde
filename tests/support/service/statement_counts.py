"""SQL statements that a service sends for each request of a worker: a study's life with one worker, counted.

Requests go to two contexts in turn, as through a load balancer: what one of them knows, the other has to read.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import event

from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.service.local_client import local_client
from tests.support.service.simulated_worker import CLUSTER, SPEC, SimulatedWorker

_NEVER_S = 3600
_QUIET = {"sweep_s", "poll_s", "fingerprint_check_s", "canary_check_s", "retune_every_s", "heartbeat_s"}


class _Counted:
    """The service's clients in turn; `kind` names the requests that are sent now."""

    def __init__(self, clients: Sequence[TestClient]) -> None:
        self._clients, self._turn = clients, 0
        self.seen = 0
        self.by_kind: dict[str, list[int]] = defaultdict(list)
        for client in clients:
            engine = client.app.state.context.db.engine  # type: ignore[attr-defined]
            event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        # SQLite's are sent as statements, Postgres' driver sends its own.
        self.seen += not statement.startswith("BEGIN")

    def post(self, path: str, **options: Any) -> Any:
        before, self._turn = self.seen, self._turn + 1
        answer = self._clients[self._turn % len(self._clients)].post(path, **options)
        last = path.rpartition("/")[2]
        self.by_kind[last if answer.status_code == 200 else f"{last} {answer.status_code}"].append(self.seen - before)
        return answer


@contextmanager
def statements_sent(client: TestClient) -> Iterator[list[str]]:
    """Statements that a service sends to its database meanwhile."""
    sent: list[str] = []
    engine = client.app.state.context.db.engine  # type: ignore[attr-defined]

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def _services(url: str, count: int) -> Iterator[list[TestClient]]:
    settings = Settings(database_url=url, **dict.fromkeys(_QUIET, _NEVER_S))
    with ExitStack() as stack:
        yield [
            stack.enter_context(local_client(create_app(context=Context.opened(settings), migrate=False)))
            for _ in range(count)
        ]


def count(url: str, replicas: int = 2, max_trials: int = 12) -> dict[str, dict[str, float]]:
    """Statements of each kind of request: mean, median and most."""
    with _services(url, replicas) as clients:
        counted = _Counted(clients)
        worker = SimulatedWorker(counted, task_kinds=TASK_KINDS).register()  # type: ignore[arg-type]
        spec = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": max_trials}}
        clients[0].post("/v1/studies", json=spec).raise_for_status()
        while (lease := worker.lease()) is not None:
            worker.heartbeat(lease)
            worker.do(lease)
    return {
        kind: {
            "count": len(actual),
            "mean": round(statistics.mean(actual), 1),
            "median": statistics.median(actual),
            "max": max(actual),
        }
        for kind, actual in counted.by_kind.items()
    }
