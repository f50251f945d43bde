"""A request goes to the host that its URL names, and to no other."""

import asyncio

import httpx
import pytest

from shardtune.service.process.dns_resolver import DnsResolver
from shardtune.service.process.public_addresses import ascii_host, resolve_checked


class _NotingResolver(DnsResolver):
    """Resolver that notes the names, and leads each to a public address."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    async def addresses(self, host: str, port: int) -> list[str]:
        self.names.append(host)
        return ["93.184.215.14"]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org/hook", "example.org"),
        # Python's own encoding of these is strasse.de, another domain.
        ("https://straße.de/hook", "xn--strae-oqa.de"),
        ("https://xn--strae-oqa.de/hook", "xn--strae-oqa.de"),
    ],
)
def test_a_name_is_looked_up_and_checked_as_the_url_has_it(url: str, name: str) -> None:
    resolver = _NotingResolver()
    address = asyncio.run(resolve_checked(httpx.URL(url), False, resolver, "remedy"))
    assert (address, resolver.names, ascii_host(httpx.URL(url))) == ("93.184.215.14", [name], name)


def test_a_literal_address_is_not_looked_up() -> None:
    resolver = _NotingResolver()
    url = httpx.URL("https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/")
    assert asyncio.run(resolve_checked(url, False, resolver, "remedy")) == "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
    assert resolver.names == []
