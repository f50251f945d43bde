"""Which addresses a webhook may reach. Names are resolved at sending, and the connection goes to the address that was
checked: a name that changes between check and use (DNS rebinding) leads nowhere else.
"""

import asyncio
import ipaddress
import socket

import httpx

from shardtune.service.http.errors import invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(Exception):
    """The URL leads where webhooks must not go."""


def check_url(url: str, allow_private: bool) -> None:
    """What can be refused before anything is sent.

    Raises:
        Invalid: another scheme, user and password, no host, or a literal address that is not public.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise invalid("url", url, f"url ({url:.200}) is not a URL: {error}; give https://HOST/PATH") from None
    if parsed.scheme not in ("http", "https"):
        raise invalid("url", url, f"url ({url:.200}) has scheme ({parsed.scheme}); webhooks go to https:// or http://")
    if parsed.userinfo:
        raise invalid(
            "url", None, "url carries a user and password, which logs would show; verify the signature instead"
        )
    if not parsed.host:
        raise invalid("url", url, f"url ({url:.200}) names no host; give https://HOST/PATH")
    literal = _literal(parsed.host)
    if literal is not None and not allow_private and not is_public(literal):
        raise invalid("url", url, f"url ({url:.200}): {_why(parsed.host, literal)}")


async def resolve(url: httpx.URL, allow_private: bool) -> str:
    """One address of the URL's host, all of which are allowed.

    Raises:
        AddressRefused: the name is unknown, or has an address that is not public.
    """
    literal = _literal(url.host)
    if literal is not None:
        found = [literal]
    else:
        loop = asyncio.get_running_loop()
        try:
            entries = await loop.getaddrinfo(url.host, url.port or 443, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise AddressRefused(f"host {url.host} cannot be resolved: {error}") from None
        found = [ipaddress.ip_address(entry[4][0]) for entry in entries]
    for address in found:
        if not allow_private and not is_public(address):
            raise AddressRefused(_why(url.host, address))
    return str(found[0])


def is_public(address: Address) -> bool:
    """Reachable from anywhere: not private, loopback, link-local (metadata services), multicast or reserved."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if embedded is not None:
            return is_public(embedded)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address.is_global and not address.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # What the resolver takes for an address as well: 127.1, 0x7f000001, 2130706433.
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _why(host: str, address: Address) -> str:
    return (
        f"{host} leads to {address}, which is not a public address; use one, or let the operator set "
        "SHARDTUNE_WEBHOOK_ALLOW_PRIVATE=true"
    )
