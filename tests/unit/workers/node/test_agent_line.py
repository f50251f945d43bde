"""The node's end of the pipe: how long it lives by what it hears."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from shardtune.workers.clock import now_s
from shardtune.workers.gang.messages import (
    Begin,
    KillOrder,
    NodeHeartbeat,
    NodeHeartbeatAnswer,
    OrderDone,
    from_node,
    to_line,
)
from shardtune.workers.node.agent_line import AgentConnection, NodeLease

LEASE_S = 0.8


@dataclass
class Ends:
    line: AgentConnection
    to_node: int
    from_node: "os.PathLike[str] | object"

    def beat(self) -> NodeHeartbeat:
        message = from_node(self.from_node.readline())  # type: ignore[attr-defined]
        assert isinstance(message, NodeHeartbeat)
        return message

    def say(self, message: object) -> None:
        os.write(self.to_node, to_line(message))  # type: ignore[arg-type]


@pytest.fixture
def ends() -> Iterator[Ends]:
    down_read, down_write = os.pipe()
    up_read, up_write = os.pipe()
    new_ends = Ends(AgentConnection(os.fdopen(down_read, "rb"), up_write), down_write, os.fdopen(up_read, "rb"))
    new_ends.say(Begin(settings={}, lease_s=LEASE_S))
    assert new_ends.line.read_first() == Begin(settings={}, lease_s=LEASE_S)
    yield new_ends
    os.close(down_write)


def until(true, limit_s: float = 5.0) -> float:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < limit_s
        time.sleep(0.01)
    return time.monotonic() - begin


def test_answered_heartbeats_keep_it_alive_and_silence_ends_it(ends: Ends) -> None:
    ends.line.start(LEASE_S)
    for _ in range(12):
        ends.say(NodeHeartbeatAnswer(beat=ends.beat().beat, lease_s=LEASE_S))
    assert not ends.line.is_over
    until(lambda: ends.line.is_over)


def test_a_response_counts_from_the_sending_of_its_heartbeat() -> None:
    lease = NodeLease(LEASE_S)
    lease.note_sent(1)
    sent_s = now_s()
    time.sleep(0.2)
    lease.renew(NodeHeartbeatAnswer(beat=1, lease_s=LEASE_S))
    assert lease.ranks_end_s - sent_s < LEASE_S


def test_the_ranks_time_is_the_shorter_of_both_leases() -> None:
    lease = NodeLease(60)
    lease.note_sent(1)
    lease.renew(NodeHeartbeatAnswer(beat=1, lease_s=60, ranks_end_in_s=5))
    assert lease.ranks_end_s == pytest.approx(now_s() + 5, abs=0.5)


def test_the_end_of_the_pipe_ends_it_at_once(ends: Ends) -> None:
    ends.line.start(60)
    os.close(ends.to_node)
    ends.to_node = os.open(os.devnull, os.O_WRONLY)
    until(lambda: ends.line.is_over)


def test_a_line_that_is_no_message_ends_it(ends: Ends) -> None:
    ends.line.start(60)
    os.write(ends.to_node, b'{"kind": "dance"}\n')
    until(lambda: ends.line.is_over)


def test_orders_come_in_their_order_and_renewals_are_told(ends: Ends) -> None:
    event = threading.Event()
    ends.line.on_renewal(lambda _: event.set())
    ends.line.start(60)
    for order in (1, 2):
        ends.say(KillOrder(order=order))
    ends.say(NodeHeartbeatAnswer(beat=ends.beat().beat, lease_s=60))
    assert [ends.line.next_order(5).order for _ in (1, 2)] == [1, 2]  # type: ignore[union-attr]
    assert event.wait(5)


def test_who_is_not_read_does_not_wait_beyond_its_lease(ends: Ends) -> None:
    ends.line.start(60)
    assert until(lambda: ends.line.is_over or ends.line.send(OrderDone(order=1, error="x" * 8000)), limit_s=10) < 8
