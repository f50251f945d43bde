"""A hub of models on loopback, which answers as huggingface.co does and notes each request."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a1" * 20
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
REMOTE = TINY | {"auto_map": {"AutoConfig": "configuration_evil.EvilConfig"}}
QUANTISED = TINY | {"quantization_config": {"quant_method": "mxfp4"}}
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "org/tiny"}
HUGE = TINY | {"padding": "x" * 300_000}
FILES: dict[str, Any] = {
    "org/tiny/config.json": TINY,
    "org/remote/config.json": REMOTE,
    "org/quantised/config.json": QUANTISED,
    "org/huge/config.json": HUGE,
    "org/adapter/adapter_config.json": ADAPTER,
    "org/broken/config.json": "{",
    "org/list/config.json": [1],
    "org/deep/config.json": "[" * 100_000,
    "org/nul/config.json": TINY | {"label": "\0"},
    "org/unpinned/config.json": TINY,
    "meta-llama/Llama-3.1-8B/config.json": TINY,
}
"""Files by repository and name. Those of `org/unpinned` come without a commit."""


class ModelHub:
    """Hub with a few repositories; `secret` opens the gated ones."""

    secret = "hf_secret_of_the_test"

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and Authorization header of each request."""
        self.files: dict[str, bytes] = {}
        """Further files by repository and name, such as weights."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append((self.command, self.path, self.headers.get("authorization")))
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request by the repository's name."""
        if handler.path.startswith("/api/models/"):
            return self._answer_about(handler, *handler.path.removeprefix("/api/models/").split("/"))
        owner, name, revision, file = self._parts(handler.path)
        repository = f"{owner}/{name}"
        is_gated = owner in ("gated", "meta-llama") and handler.headers.get("authorization") != f"Bearer {self.secret}"
        if is_gated:
            return _send(handler, 401, error="GatedRepo")
        if name == "moved":
            return _send(handler, 307, {"location": f"/org/tiny/resolve/{revision}/{file}", "x-repo-commit": COMMIT})
        if name.startswith("elsewhere"):
            return _send(handler, 302, {"location": "http://169.254.169.254/latest/meta-data/"})
        if name == "loop":
            return _send(handler, 302, {"location": handler.path})
        if name == "busy":
            return _send(handler, 503)
        if name == "slow":
            time.sleep(3)
        if not any(known.startswith(f"{repository}/") for known in (*FILES, *self.files)) and owner != "gated":
            return _send(handler, 401, error="RepoNotFound")
        if revision not in ("main", COMMIT):
            return _send(handler, 404, error="RevisionNotFound")
        content = (
            TINY if owner == "gated" else self.files.get(f"{repository}/{file}", FILES.get(f"{repository}/{file}"))
        )
        if content is None:
            return _send(handler, 404, {"x-repo-commit": COMMIT}, error="EntryNotFound")
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        body = text if isinstance(text, bytes) else text.encode()
        headers = {"etag": f'"{hashlib.sha1(body).hexdigest()}"', "content-type": "application/json"}
        return _send(handler, 200, headers | ({} if name == "unpinned" else {"x-repo-commit": COMMIT}), body)

    def _answer_about(self, handler: BaseHTTPRequestHandler, owner: str, name: str, *further: str) -> None:
        """Answer a question about a repository: its id and commit are known, folders it has none."""
        if not any(known.startswith(f"{owner}/{name}/") for known in (*FILES, *self.files)):
            return _send(handler, 401, error="RepoNotFound")
        if further:
            return _send(handler, 404, error="EntryNotFound")
        body = json.dumps({"id": f"{owner}/{name}", "sha": COMMIT, "tags": [], "siblings": []}).encode()
        return _send(handler, 200, {"content-type": "application/json"}, body)

    @staticmethod
    def _parts(path: str) -> tuple[str, str, str, str]:
        owner, name, _, revision, file = [*path.strip("/").split("/"), *[""] * 5][:5]
        return owner, name, revision, file

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    error: str | None = None,
) -> None:
    handler.send_response(status)
    for name, value in ({"x-error-code": error} if error else {}).items():
        handler.send_header(name, value)
    for name, value in {**(headers or {}), "content-length": str(len(body))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        # A client that has read enough may be gone.
        with suppress(OSError):
            handler.wfile.write(body)


@contextmanager
def model_hub() -> Iterator[ModelHub]:
    """Open a hub for the duration of a test."""
    opened = ModelHub()
    try:
        yield opened
    finally:
        opened.close()
