"""A client in the service's own process that looks like one on the same machine."""

from fastapi import FastAPI
from fastapi.testclient import TestClient


def local_client(app: FastAPI, **options: object) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000), **options)
