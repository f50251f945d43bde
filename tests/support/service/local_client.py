"""A client in the service's own process that looks like one on the same machine, and checks what it is answered."""

from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.support.service.response_checks import check_answer


def local_client(app: FastAPI, **options: object) -> TestClient:
    client = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000), **options)
    client.event_hooks = {"request": [], "response": [check_answer]}
    return client
