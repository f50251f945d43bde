"""Ports that hosts try each other by."""

import socket

from shardtune.workers.node import addresses
from shardtune.workers.node.addresses import ProbePorts

HERE = "127.0.0.1"


def knock(port: int) -> None:
    with socket.create_connection((HERE, port), timeout=5) as stranger:
        stranger.recv(1)


def test_a_port_that_was_tried_is_free_for_the_ranks_whoever_else_knocks() -> None:
    tried_ports = ProbePorts()
    opened = tried_ports.listen(1, HERE, None)
    assert opened.port is not None and opened.word is not None
    assert addresses.reach(2, HERE, opened.port, opened.word).error is None
    knock(opened.port)
    tried_ports.close()
    socket.create_server((HERE, opened.port)).close()


def test_who_keeps_knocking_keeps_no_port_open() -> None:
    tried_ports = ProbePorts(patience_s=0.2)
    port = tried_ports.listen(1, HERE, None).port
    assert port is not None
    knocks = 0
    try:
        while True:
            knock(port)
            knocks += 1
    except ConnectionError:
        assert knocks
