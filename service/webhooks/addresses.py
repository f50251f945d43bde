"""Check that webhooks only reach allowed addresses.

Host names are resolved when a message is sent, and the connection goes to the address that was checked. A name whose
address changes between check and use (DNS rebinding) therefore cannot redirect a message.
"""

import ipaddress
import socket

import httpx

from shardtune.service.http.errors import invalid
from shardtune.service.process.dns_resolver import DnsResolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_REMEDY = "use one, or let the operator set SHARDTUNE_WEBHOOK_ALLOW_PRIVATE=true"
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            # Python counts these as global: Azure's host, which answers every machine in it; protocol assignments
            # (Oracle's metadata service is among them); relays of 6to4.
            "168.63.129.16/32",
            "192.0.0.0/24",
            "192.88.99.0/24",
            # Ways into IPv4 (Teredo and other protocol assignments, 6to4), and documentation.
            "2001::/23",
            "2002::/16",
            "3fff::/20",
        ),
    )
)
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Network of the IPv6 addresses that are assigned to hosts worldwide. Excludes `::/96`, `64:ff9b:1::/48`, `fc00::/7`,
`fe80::/10`, `fec0::/10` and multicast.
"""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Third quarter of an IPv6 address in ISATAP format, which embeds an IPv4 address in any network."""


class AddressRejected(Exception):
    """Error for a webhook URL whose address webhooks are not allowed to reach."""


def check_url(url: str, allow_private: bool) -> None:
    """Reject a webhook URL that is invalid independently of the addresses its host name resolves to.

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
    literal = _parse_literal(parsed.host)
    if literal is not None and not allow_private and not is_public(literal):
        raise invalid("url", url, f"url ({url:.200}): {literal} is not a public address; {_REMEDY}")


async def resolve_checked(url: httpx.URL, allow_private: bool, look_ups: DnsResolver) -> str:
    """Resolve the host of a webhook URL; returns one of its addresses, after checking that all its addresses are
    allowed.

    Raises:
        AddressRejected: the name is unknown, or has an address that is not public.
    """
    literal = _parse_literal(url.host)
    if literal is not None:
        resolved = [literal]
    else:
        try:
            resolved = [
                ipaddress.ip_address(address) for address in await look_ups.addresses(url.host, url.port or 443)
            ]
        except (OSError, UnicodeError):
            raise AddressRejected(f"host {url.host} cannot be resolved") from None
    # The error names no address: users who read it may not know the operator's network.
    if not allow_private and not all(map(is_public, resolved)):
        raise AddressRejected(f"host {url.host} does not lead to public addresses alone; {_REMEDY}")
    return str(resolved[0])


def is_public(address: Address) -> bool:
    """Whether an address can be reached from the public internet.

    Excludes private, loopback, link-local (metadata services), multicast and reserved addresses, and IPv6 addresses
    that lead to such IPv4 addresses.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _UNICAST or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
            return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _NOT_PUBLIC)


def _parse_literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # The system's resolver also takes these for addresses: 127.1, 0x7f000001, 2130706433.
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
