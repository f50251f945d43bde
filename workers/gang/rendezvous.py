"""Where the ranks of several hosts meet: an address of the first host that all others reach, and each host's interface to it."""

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from shardtune.workers.gang.link import NodeLink, ask_all
from shardtune.workers.gang.messages import ListenOrder, NodeAddress, OrderDone, PortRange, ReachOrder, SharedOrder

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_REMEDY = (
    "open the network between the hosts (the store's port may be set with --meet-ports FIRST-LAST; gloo and NCCL use any), "
    "or name the network that joins them with --interface"
)


class NoRendezvous(Exception):
    """The hosts do not reach each other; the message says which does not reach which address, and what to do."""


def meet(links: Sequence[NodeLink], interface: str | None, ports: PortRange | None) -> list[NodeAddress]:
    """Each host's own address among the others, in their order.

    Raises:
        NoRendezvous: no address of the first host is reached by all, or one host is not reached by the first.
    """
    first, *others = links
    failures: list[str] = []
    for own in _candidates(first, interface):
        if not others:
            return [own]
        found = _try(first, others, own, interface, ports)
        if not isinstance(found, str):
            return [own, *found]
        failures.append(found)
    raise NoRendezvous(f"the hosts do not reach each other: {'; '.join(failures)}. {_REMEDY}")


def _candidates(first: NodeLink, interface: str | None) -> list[NodeAddress]:
    assert first.ready is not None
    found = [own for own in first.ready.addresses if interface in (None, own.interface)]
    if not found:
        there = ", ".join(sorted({own.interface for own in first.ready.addresses})) or "none"
        raise NoRendezvous(
            f"interface ({interface}) is not up on host {first.host}, which has: {there}; name one of them"
        )
    return found


def _try(
    first: NodeLink, others: Sequence[NodeLink], own: NodeAddress, interface: str | None, ports: PortRange | None
) -> list[NodeAddress] | str:
    """The others' addresses, or what does not work."""
    (open_,) = ask_all([first], lambda _, order: ListenOrder(order=order, address=own.address, ports=ports))
    if open_.error is not None:
        return f"host {first.host} {open_.error}"
    answers = ask_all(others, lambda _, order: _reach(order, own.address, open_))
    found = []
    for link, answer in zip(others, answers, strict=True):
        if answer.own is None:
            return f"host {link.host} does not reach {own.address}:{open_.port} of host {first.host} ({answer.error})"
        if interface not in (None, answer.own.interface):
            return f"host {link.host} reaches {own.address} by {answer.own.interface}, not by interface ({interface})"
        found.append(answer.own)
    return _back(first, others, found) or found


def _back(first: NodeLink, others: Sequence[NodeLink], addresses: Sequence[NodeAddress]) -> str | None:
    """Ranks connect in both directions, and to ports that the kernel chooses."""
    by_host = {link.host: own.address for link, own in zip(others, addresses, strict=True)}
    open_ = ask_all(others, lambda link, order: ListenOrder(order=order, address=by_host[link.host], ports=None))
    for link, listening in zip(others, open_, strict=True):
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
    """Have every host see what this one writes there, and this one what the last host writes.

    Raises:
        ValueError: one does not.
    """
    word, probe = secrets.token_hex(8), folder / f".shardtune-{secrets.token_hex(4)}"
    remedy = "give --shared-dir a folder of a file system that every host has mounted there"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text(word)
        for link, answer in zip(links, ask_all(links, partial(_look, probe)), strict=True):
            if answer.word != word:
                what = answer.error or "another file"
                raise ValueError(f"shared_dir ({folder}) is not the same folder on host {link.host} ({what}); {remedy}")
        last = links[-1]
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


def _look(probe: Path, _: NodeLink, order: int) -> SharedOrder:
    return SharedOrder(order=order, path=str(probe))


def variables(own: NodeAddress, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What tells the libraries of a host's ranks their interface; what the worker was given counts first."""
    return {name: own.interface for name in _INTERFACE_VARIABLES if name not in given}
