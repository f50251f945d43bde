"""Headers of proxies: who may say that a connection uses TLS, and whose address counts."""

import asyncio
import logging
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError
from starlette.requests import Request

from shardtune.service import trusted_proxies
from shardtune.service.server import ServerConfig
from shardtune.service.settings import Settings

FORWARDED = [(b"host", b"tune.example"), (b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"203.0.113.9")]


def scope_of(peer: str, settings: Settings) -> dict[str, Any]:
    """Scope of a forwarded request from a peer, as the application behind uvicorn sees it."""
    seen: dict[str, Any] = {}

    async def application(scope: dict[str, Any], _receive: object, _send: object) -> None:
        seen.update(scope)

    config = ServerConfig(application, settings, lifespan="off")
    config.load()
    scope = {"type": "http", "scheme": "http", "client": (peer, 5), "headers": FORWARDED, "path": "/", "method": "GET"}
    asyncio.run(cast("Any", config.loaded_app)(scope, None, None))
    return seen


@pytest.mark.parametrize(
    ("peer", "counts"), [("10.244.3.7", True), ("192.168.1.4", True), ("192.168.1.5", False), ("127.0.0.1", False)]
)
def test_only_a_trusted_proxy_says_who_the_client_is(peer, counts, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    scope = scope_of(peer, Settings(trusted_proxies=("10.244.0.0/16", "192.168.1.4")))
    assert scope["scheme"] == ("https" if counts else "http")
    assert scope["client"][0] == ("203.0.113.9" if counts else peer)


@pytest.mark.parametrize(
    "manifest",
    [
        "systemd/shardtune-service.service",
        "compose/compose.yaml",
        "kubernetes/base/service.yaml",
        "helm/shardtune/templates/service.yaml",
    ],
)
def test_each_manifest_of_a_service_names_its_proxies(manifest):
    """Behind a proxy elsewhere a service without the setting has cookies without `Secure`, and one sender for all."""
    text = (Path(__file__).parents[4] / "deploy" / manifest).read_text()
    assert "SHARDTUNE_TRUSTED_PROXIES" in text and "SHARDTUNE_REQUIRE_KEYS" in text


@pytest.mark.parametrize("entry", ["*", "0.0.0.0/0", "128.0.0.0/1", "::/0", "proxy.example", "10.0.0.1/8", ""])
def test_an_entry_that_names_no_proxy_is_rejected(entry):
    with pytest.raises(ValidationError, match=r"trusted_proxies \('.*name the"):
        Settings(trusted_proxies=(entry,))


def test_a_proxy_that_is_not_trusted_is_reported_once(caplog):
    trusted_proxies._warn_once.cache_clear()
    request = Request(scope_of("10.9.9.9", Settings()))
    with caplog.at_level(logging.WARNING):
        trusted_proxies.warn_of_untrusted(request)
        trusted_proxies.warn_of_untrusted(request)
        trusted_proxies.warn_of_untrusted(Request(scope_of("127.0.0.1", Settings())))
    (record,) = caplog.records
    assert "10.9.9.9" in record.getMessage() and "SHARDTUNE_TRUSTED_PROXIES" in record.getMessage()
