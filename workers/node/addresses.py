"""Addresses of this host, and test connections between the hosts of a gang."""

import contextlib
import secrets
import socket
import threading
import time

import psutil

from shardtune.workers.gang.messages import NodeAddress, OrderDone, PortRange

_TRY_S = 3.0
"""Time limit in seconds of a connection to another host."""
_LISTEN_S = 30.0
"""Seconds that a listening port waits for connections from other hosts."""


def of_this_host() -> tuple[NodeAddress, ...]:
    """Addresses of this host's network interfaces that are up, IPv4 before IPv6. The loopback's is last: it is
    reachable only from this host."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    sort_keys = [
        (item.address.startswith("127."), item.family != socket.AF_INET, name, item.address)
        for name, items in psutil.net_if_addrs().items()
        if name in up
        for item in items
        if item.family == socket.AF_INET or (item.family == socket.AF_INET6 and _is_global(item.address))
    ]
    return tuple(NodeAddress(interface=name, address=address) for _, _, name, address in sorted(sort_keys))


def _is_global(address: str) -> bool:
    return "%" not in address and not address.startswith(("fe80:", "::1"))


def interface_of(address: str) -> str | None:
    """Name of the network interface that has the address; None if none has it."""
    return next((entry.interface for entry in of_this_host() if entry.address == address), None)


class ProbePorts:
    """Ports that a host opens for a short time, so that other hosts can test whether they can connect before the ranks
    meet there. Any program may connect to them."""

    def __init__(self, patience_s: float = _LISTEN_S) -> None:
        self._patience_s = patience_s
        self._open: list[tuple[socket.socket, threading.Thread]] = []

    def listen(self, order: int, address: str, ports: PortRange | None) -> OrderDone:
        """Open a port on which a thread sends the given word to each connection."""
        first, last = ports or (0, 0)
        for port in range(first, last + 1):
            try:
                server = socket.create_server((address, port), family=_family(address), backlog=1024)
            except OSError as error:
                rejection = f"{address}:{port}: {error.strerror}"
                continue
            word, number = secrets.token_hex(8), server.getsockname()[1]
            ends_s = time.monotonic() + self._patience_s
            sender = threading.Thread(target=_send_word, args=(server, word, ends_s), name="listener", daemon=True)
            sender.start()
            self._open.append((server, sender))
            return OrderDone(order=order, port=number, word=word)
        return OrderDone(order=order, error=f"cannot listen on {rejection}")

    def close(self) -> None:
        """Close the opened ports, since the rendezvous may use one of them."""
        for server, sender in self._open:
            with contextlib.suppress(OSError):  # it has ended already
                server.shutdown(socket.SHUT_RDWR)
            sender.join()
        self._open.clear()


def _send_word(server: socket.socket, word: str, ends_s: float) -> None:
    with contextlib.suppress(OSError), server:
        while (left_s := ends_s - time.monotonic()) > 0:
            server.settimeout(left_s)
            peer, _ = server.accept()
            with contextlib.suppress(OSError), peer:
                peer.sendall(word.encode())


def reach(order: int, address: str, port: int, word: str) -> OrderDone:
    """Connect to a port on which another host listens. The answer contains this host's own address in the
    connection."""
    try:
        with socket.create_connection((address, port), timeout=_TRY_S) as peer:
            peer.settimeout(_TRY_S)
            own_address = str(peer.getsockname()[0])
            # The word proves that the other node answers, not another program or a middlebox on that port.
            received = peer.recv(len(word) + 1).decode(errors="replace")
    except OSError as error:
        return OrderDone(order=order, error=f"{error.strerror or error}")
    if received != word:
        return OrderDone(order=order, error="somebody else answers there")
    interface = interface_of(own_address)
    if interface is None:
        return OrderDone(order=order, error=f"reached from {own_address}, which no interface has")
    return OrderDone(order=order, source_address=NodeAddress(interface=interface, address=own_address))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
