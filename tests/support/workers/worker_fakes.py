"""Parts the worker tests share: the fake host's command line, tasks, and a small HTTP server that answers as told."""

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask

FAKE_HOST = (sys.executable, "-S", str(Path(__file__).with_name("fake_fork_server.py")))


def make_task(**changes) -> TrialTask:
    values = {
        "model": preset("llama-tiny"),
        "workload": Workload(sequence_length=128, global_batch=8),
        "cluster": Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8),
        "config": TrialConfig(strategy=DdpConfig(), micro_batch=2),
    }
    return TrialTask(**{**values, **changes})


class FakeService:
    """Answers every request with what `answer(path, body)` returns: a status and a JSON value (None: no body).

    `port` lets a test stop it and start another at the same address, as a restarted service would be.
    """

    def __init__(self, answer: Callable[[str, Any], tuple[int, Any]], port: int = 0):
        self.requests: list[tuple[str, Any]] = []
        self.keys: list[str] = []
        """Values of the header `Authorization`, request by request."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "null")
                service.requests.append((self.path, body))
                service.keys.append(self.headers.get("authorization", ""))
                status, content = answer(self.path, body)
                payload = b"" if content is None else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def bodies(self, path_end: str) -> list[Any]:
        """Bodies of the requests so far whose path ends like that."""
        return [body for path, body in self.requests if path.endswith(path_end)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
