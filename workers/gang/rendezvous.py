"""Rendezvous of several hosts' ranks: an address of the first host that all other hosts reach, and each host's network
interface to it."""

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from shardtune.api_schemas.access import private_folder
from shardtune.workers.gang.link import NodeLink, ask_all
from shardtune.workers.gang.messages import ListenOrder, NodeAddress, OrderDone, PortRange, ReachOrder, SharedOrder

# NCCL takes a name for a prefix unless `=` is before it: `bond0` would also mean `bond0.100`, which may join nothing.
_INTERFACE_VARIABLES = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "=", "TP_SOCKET_IFNAME": ""}
"""Environment variables that name a network interface to a communication library, each with the text that stands before
the exact name of one interface."""
_REMEDY = (
    "open the network between the hosts (the store's port may be set with --meet-ports FIRST-LAST; gloo and NCCL use any), "
    "or name the network that joins them with --interface"
)


class NoRendezvous(Exception):
    """Exception for hosts of a gang (hosts that train together) that do not reach each other. The message names the
    host, the address that it does not reach, and the remedy."""


def find_addresses(links: Sequence[NodeLink], interface: str | None, ports: PortRange | None) -> list[NodeAddress]:
    """Find for each host an address at which the other hosts reach it; returns the addresses in the order of the hosts.

    Raises:
        NoRendezvous: no address of the first host is reached by all others, or the first host does not reach another
            one.
    """
    first, *other_links = links
    failures: list[str] = []
    # A host may have several networks, of which only some join the hosts.
    for address in _candidates(first, interface):
        if not other_links:
            return [address]
        outcome = _try_address(first, other_links, address, interface, ports)
        if not isinstance(outcome, str):
            return [address, *outcome]
        failures.append(outcome)
    raise NoRendezvous(f"the hosts do not reach each other: {'; '.join(failures)}. {_REMEDY}")


def _candidates(first: NodeLink, interface: str | None) -> list[NodeAddress]:
    assert first.ready is not None
    candidates = [address for address in first.ready.addresses if interface in (None, address.interface)]
    if not candidates:
        interfaces = ", ".join(sorted({address.interface for address in first.ready.addresses})) or "none"
        raise NoRendezvous(
            f"interface ({interface}) is not up on host {first.host}, which has: {interfaces}; name one of them"
        )
    return candidates


def _try_address(
    first: NodeLink,
    other_links: Sequence[NodeLink],
    address: NodeAddress,
    interface: str | None,
    ports: PortRange | None,
) -> list[NodeAddress] | str:
    """Try whether the other hosts reach an address of the first host, where the ranks would meet. Returns the other
    hosts' own addresses, or a text with the reason why a connection fails."""
    (open_,) = ask_all([first], lambda _, order: ListenOrder(order=order, address=address.address, ports=ports))
    if open_.error is not None:
        return f"host {first.host} {open_.error}"
    answers = ask_all(other_links, lambda _, order: _reach(order, address.address, open_))
    addresses = []
    for link, answer in zip(other_links, answers, strict=True):
        if answer.source_address is None:
            return (
                f"host {link.host} does not reach {address.address}:{open_.port} of host {first.host} ({answer.error})"
            )
        if interface not in (None, answer.source_address.interface):
            via = answer.source_address.interface
            return f"host {link.host} reaches {address.address} by {via}, not by interface ({interface})"
        addresses.append(answer.source_address)
    return _reach_back_problem(first, other_links, addresses) or addresses


def _reach_back_problem(
    first: NodeLink, other_links: Sequence[NodeLink], addresses: Sequence[NodeAddress]
) -> str | None:
    """Message that names a host which the first host does not reach; None if it reaches all hosts."""
    # Both directions are tried, on ports that the kernel chooses: gloo and NCCL connect either way.
    by_host = {link.host: address.address for link, address in zip(other_links, addresses, strict=True)}
    open_ = ask_all(other_links, lambda link, order: ListenOrder(order=order, address=by_host[link.host], ports=None))
    for link, listening in zip(other_links, open_, strict=True):
        address = by_host[link.host]
        if listening.error is not None:
            return f"host {link.host} {listening.error}"
        (answer,) = ask_all([first], partial(_reach_back, address, listening))
        if answer.error is not None:
            return f"host {first.host} does not reach {address}:{listening.port} of host {link.host} ({answer.error})"
    return None


def _reach_back(address: str, listening: OrderDone, _: NodeLink, order: int) -> ReachOrder:
    return _reach(order, address, listening)


def _reach(order: int, address: str, listening: OrderDone) -> ReachOrder:
    assert listening.port is not None
    assert listening.word is not None
    return ReachOrder(order=order, address=address, port=listening.port, word=listening.word)


def require_shared(folder: Path, links: Sequence[NodeLink]) -> None:
    """Check that all hosts share a folder: every host must read a file that this host wrote into it, and the last host
    must be able to write the file.

    Raises:
        ValueError: a host sees another folder, or cannot write there.
    """
    own = private_folder.of_this_user(folder)
    word, probe = secrets.token_hex(8), own / f".probe-{secrets.token_hex(4)}"
    remedy = "give --shared-dir a folder of a file system that every host has mounted there"
    try:
        private_folder.make(own, "shared_dir", is_shared_place=True)
        probe.write_text(word)
        for link, answer in zip(links, ask_all(links, partial(_read_order, probe)), strict=True):
            if answer.word != word:
                problem = answer.error or "another file"
                raise ValueError(
                    f"shared_dir ({folder}) is not the same folder on host {link.host} ({problem}); {remedy}"
                )
        last = links[-1]
        # Another word than the first: it proves that the last host wrote, not that the first content is still there.
        (answer,) = ask_all([last], lambda _, order: SharedOrder(order=order, path=str(probe), writes=word[::-1]))
        if answer.error is not None or probe.read_text() != word[::-1]:
            raise ValueError(
                f"shared_dir ({folder}) cannot be written from host {last.host} ({answer.error}); {remedy}"
            )
    except OSError as error:
        raise ValueError(f"shared_dir ({folder}) cannot be written here: {error.strerror}; {remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _read_order(probe: Path, _: NodeLink, order: int) -> SharedOrder:
    return SharedOrder(order=order, path=str(probe))


def interface_variables(address: NodeAddress, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables that tell the communication libraries of a host's ranks which network interface to use.
    Variables that were already set for the worker keep their values."""
    return {
        name: f"{before}{address.interface}" for name, before in _INTERFACE_VARIABLES.items() if name not in environment
    }
