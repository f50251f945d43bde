"""Find the user at the other end of a local connection, from what the kernel knows of sockets.

A loopback address says that a program runs on this machine, not whose program it is.
"""

import socket
import struct
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

PEER_USER = "peer_user"
"""Key under which a request's state stores who sent it: the operating system's user at the client's end of the
connection.
"""
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Kernel tables of open TCP sockets (proc_pid_net(5)), which contain the local and the remote address of each socket,
and the user who opened it. Reading a table takes the kernel some 20 ms, however short the table is.
"""
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
_CREDENTIALS = struct.Struct("3i")

# sock_diag(7): a request for the one socket with these ends, and its answer.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST, _ESTABLISHED = 4, 20, 1, 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_ENDS = struct.Struct("!HH16s16s")
_ANY_INTERFACE_AND_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER = struct.Struct("=BBBB48s5I")
_ANSWER_S = 1.0

_Address = tuple[IPv4Address | IPv6Address, int]


class PeerUser:
    """Operating system's user at the client's end of one connection, looked up on first use and then kept."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @cached_property
    def uid(self) -> int | None:
        """Id of the user who runs the client's program. None if the kernel knows no open socket at that address,
        because the program runs on another machine or has closed the connection.
        """
        try:
            if self._connection.family == socket.AF_UNIX:
                credentials = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                return int(_CREDENTIALS.unpack(credentials)[1])
            ends = _plain(self._connection.getpeername()), _plain(self._connection.getsockname())
            uid = _diagnosed_uid(*ends)
            # Without netlink the whole table is read.
            return _uid_of(*ends) if uid is None else uid
        except OSError:
            return None


def _diagnosed_uid(local: _Address, remote: _Address) -> int | None:
    """Id of the user who opened the socket with these two addresses. Asks the kernel for this socket only; None if
    the kernel does not answer.
    """
    family = socket.AF_INET if local[0].version == 4 else socket.AF_INET6
    # Padded to the size of an IPv6 address.
    addresses = [address.packed.ljust(16, b"\0") for address, _ in (local, remote)]
    ends = _ENDS.pack(local[1], remote[1], *addresses)
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED) + ends + _ANY_INTERFACE_AND_COOKIE
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_S)
            kernel.sendto(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + body, (0, 0))
            answer = kernel.recv(8192)
    except OSError:
        return None
    if len(answer) < _HEADER.size + _ANSWER.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, state, _, _, answered_ends, _, _, _, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    # Where no connection has these ends, the kernel answers with the socket that listens.
    is_established = state == _ESTABLISHED and inode != 0 and answered_ends.startswith(ends)
    return int(uid) if is_established else None


def _uid_of(local: _Address, remote: _Address) -> int | None:
    """Id of the user who opened the socket with these two addresses, found in the kernel's tables of sockets."""
    ports = f":{local[1]:04X}", f":{remote[1]:04X}"
    for table in _TABLES:
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            # The ports first: parsing each address would cost much where there are thousands of sockets.
            if not (fields[_LOCAL].endswith(ports[0]) and fields[_REMOTE].endswith(ports[1])):
                continue
            # A closed socket has no inode any more, and its user is shown as root.
            is_open = fields[_INODE] != "0"
            if is_open and (_parse(fields[_LOCAL]), _parse(fields[_REMOTE])) == (local, remote):
                return int(fields[_UID])
    return None


def _parse(text: str) -> _Address:
    """Parse an address in the kernel's socket tables: hexadecimal 32-bit words in the machine's byte order."""
    digits, port = text.split(":")
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return _unmapped(IPv4Address(packed) if len(words) == 1 else IPv6Address(packed)), int(port, 16)


def _plain(name: tuple[str, int] | tuple[str, int, int, int]) -> _Address:
    host, port = name[0].partition("%")[0], name[1]
    return _unmapped(IPv6Address(host) if ":" in host else IPv4Address(host)), port


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that is contained in an IPv6 address such as `::ffff:127.0.0.1`; other addresses are
    returned unchanged.
    """
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
