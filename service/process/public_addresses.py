"""Check that outgoing requests (webhooks, reads of the model hub) only reach allowed addresses.

Host names are resolved when a request is sent, and the connection goes to the address that was checked. A name whose
address changes between check and use (DNS rebinding) therefore cannot redirect a request.
"""

import ipaddress
import socket

import httpx

from shardtune.service.process.dns_resolver import DnsResolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

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
"""Third 32-bit word of an IPv6 address in ISATAP format, which embeds an IPv4 address in any network."""


class AddressRejected(Exception):
    """Error for a URL whose address the service is not allowed to reach."""


async def resolve_checked(url: httpx.URL, allow_private: bool, look_ups: DnsResolver, remedy: str) -> str:
    """Resolve the host of a URL; returns one of its addresses, after checking that all its addresses are allowed.

    `remedy`: what a user or the operator can do about an address that is not public.

    Raises:
        AddressRejected: the name is unknown, or has an address that is not public.
    """
    host = ascii_host(url)
    literal = parse_literal(host)
    if literal is not None:
        resolved = [literal]
    else:
        try:
            resolved = [ipaddress.ip_address(address) for address in await look_ups.addresses(host, url.port or 443)]
        except (OSError, UnicodeError):
            raise AddressRejected(f"host {url.host} cannot be resolved") from None
    # The error names no address: users who read it may not know the operator's network.
    if not allow_private and not all(map(is_public, resolved)):
        raise AddressRejected(f"host {url.host} does not lead to public addresses alone; {remedy}")
    return str(resolved[0])


def ascii_host(url: httpx.URL) -> str:
    """Host of a URL in the form in which it is looked up, and in which certificates name it."""
    # Not `url.host`, which is decoded: Python's resolver and TLS would encode `straße.de` anew by IDNA 2003, as
    # `strasse.de`, which may be somebody else's.
    return url.raw_host.decode("ascii")


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


def parse_literal(host: str) -> Address | None:
    """IP address that a URL contains in place of a host name; None if it contains a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # The system's resolver also takes these for addresses: 127.1, 0x7f000001, 2130706433.
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
