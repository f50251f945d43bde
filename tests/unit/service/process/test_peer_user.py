"""The user at the other end of a local connection."""

import os
import socket

import pytest

from shardtune.service.process import peer_user
from shardtune.service.process.peer_user import PeerUser
from tests.support.processes import other_user

LOOPBACK = [
    pytest.param(socket.AF_INET, "127.0.0.1", "127.0.0.1", id="IPv4"),
    pytest.param(socket.AF_INET6, "::1", "::1", id="IPv6"),
    pytest.param(socket.AF_INET6, "::", "127.0.0.1", id="IPv4 to an IPv6 socket"),
]


def listener_at(family, address):
    return socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::")


@pytest.mark.parametrize(("family", "address", "target"), LOOPBACK)
def test_a_connection_of_this_user_is_known(family, address, target):
    with (
        listener_at(family, address) as listener,
        socket.create_connection((target, listener.getsockname()[1])),
        listener.accept()[0] as accepted,
    ):
        assert PeerUser(accepted).uid == os.geteuid()


@pytest.mark.parametrize(("family", "address", "target"), LOOPBACK)
def test_a_connection_of_another_user_is_that_user_s(family, address, target):
    with (
        listener_at(family, address) as listener,
        other_user.acting(lambda: socket.create_connection((target, listener.getsockname()[1]))),
        listener.accept()[0] as accepted,
    ):
        assert PeerUser(accepted).uid == other_user.OTHER_UID


def test_an_end_that_is_closed_belongs_to_nobody():
    """The kernel shows root as the user of a closed socket: whoever sends and closes at once would be root."""
    with listener_at(socket.AF_INET, "127.0.0.1") as listener:
        client = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as accepted:
            client.close()
            assert PeerUser(accepted).uid is None


def test_a_unix_socket_tells_its_user():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert PeerUser(ours).uid == os.geteuid()


@pytest.mark.parametrize(("family", "address", "target"), LOOPBACK)
def test_the_kernel_answers_about_one_socket_without_its_whole_table(monkeypatch, family, address, target):
    """A read of the table takes 20 ms, which hundreds of new connections would wait for one after the other."""
    monkeypatch.setattr(peer_user, "_TABLES", ())
    with (
        listener_at(family, address) as listener,
        socket.create_connection((target, listener.getsockname()[1])),
        listener.accept()[0] as accepted,
    ):
        assert PeerUser(accepted).uid == os.geteuid()


@pytest.mark.parametrize(("family", "address", "target"), LOOPBACK)
def test_the_table_says_the_same_where_the_kernel_does_not_answer(monkeypatch, family, address, target):
    monkeypatch.setattr(peer_user, "_diagnosed_uid", lambda _local, _remote: None)
    with (
        listener_at(family, address) as listener,
        other_user.acting(lambda: socket.create_connection((target, listener.getsockname()[1]))),
        listener.accept()[0] as accepted,
    ):
        assert PeerUser(accepted).uid == other_user.OTHER_UID
