"""Node agent's end of the pipe to the agent: heartbeats, orders, and the lease between agent and node agent.

Two threads, neither of which touches a rank: one sends heartbeats, one reads the agent's messages. The main thread checks
`is_over`.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import BinaryIO

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.clock import LeaseClock, now_s
from shardtune.workers.gang.messages import (
    MAX_LINE_BYTES,
    AgentMessage,
    Begin,
    NodeHeartbeat,
    NodeHeartbeatAnswer,
    from_agent,
    to_line,
)
from shardtune.workers.gang.pipe import write_line

_HEARTBEATS_PER_LEASE = 8
"""Number of heartbeats that the node agent sends per lease."""
_SENT_KEPT = 1000
"""Number of heartbeats whose time of sending is kept. It is far larger than the number in one lease."""

log = logging.getLogger(__name__)


class NodeLease:
    """Lease of this node agent and its ranks. It is counted from the sending of the last heartbeat that the agent
    answered."""

    def __init__(self, lease_s: float) -> None:
        self._clock = LeaseClock(now_s(), lease_s)
        self._sent_s: dict[int, float] = {}
        self._ranks_end_s: float | None = None

    def note_sent(self, beat: int) -> None:
        """Record that a heartbeat is sent now."""
        self._sent_s[beat] = now_s()
        self._sent_s.pop(beat - _SENT_KEPT, None)

    def renew(self, answer: NodeHeartbeatAnswer) -> None:
        """Renew the node agent's lease by the agent's answer to a heartbeat."""
        sent_s = self._sent_s.get(answer.beat)
        if sent_s is None:
            # Too old to renew anything: a lease counted from its sending would be over.
            return
        self._clock.renew(sent_s, answer.lease_s)
        left_s = answer.ranks_end_in_s
        self._ranks_end_s = None if left_s is None else sent_s + left_s

    def must_end(self) -> bool:
        """Whether the agent has been silent for so long that the node agent must end its ranks."""
        return self._clock.must_end()

    @property
    def ranks_end_s(self) -> float:
        """Time (on the clock of `clock.now_s`) by which the ranks must have ended: the earlier one of the times that
        the node agent's lease and the agent's own lease demand."""
        own_s = self._clock.ranks_end_s
        return own_s if self._ranks_end_s is None else min(own_s, self._ranks_end_s)


class AgentConnection:
    """Connection of the node agent to the agent: once started, it reads orders and sends messages."""

    def __init__(self, incoming: BinaryIO, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        # A full pipe must not block the main thread: `write_line` gives up after some seconds.
        os.set_blocking(outgoing, False)
        self._orders: queue.Queue[AgentMessage] = queue.Queue()
        self._send_lock = threading.Lock()
        self._is_open = True
        self._lease: NodeLease | None = None
        self._beat_s = 1.0
        self._renewed: Callable[[float], None] = lambda _: None
        self.progress_change: tuple[int, Progress | None] = (0, None)
        """Counter that changes with each progress, and last progress, which the next heartbeats send. The main thread
        sets them, because the heartbeat thread reads no files."""

    def read_first(self) -> Begin | None:
        """First message of the agent, read from the pipe; None if the pipe closed before it arrived.

        Raises:
            ValueError: the first message is not `begin`.
        """
        line = self._incoming.readline(MAX_LINE_BYTES)
        if not line:
            return None
        begin = from_agent(line)
        if not isinstance(begin, Begin):
            raise ValueError(f"the first line ({begin.kind}) must be begin")
        return begin

    def start(self, lease_s: float) -> None:
        """Start the connection's threads; from now on the node agent's lease applies."""
        self._lease, self._beat_s = NodeLease(lease_s), lease_s / _HEARTBEATS_PER_LEASE
        threading.Thread(target=self._read, name="orders", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="heartbeats", daemon=True).start()

    def on_renewal(self, callback: Callable[[float], None]) -> None:
        """Set a function that a thread calls after every answer of the agent, with the time by which the ranks must
        have ended."""
        self._renewed = callback

    @property
    def ranks_end_s(self) -> float:
        """Time (on the clock of `clock.now_s`) by which the ranks must have ended (see `NodeLease.ranks_end_s`)."""
        assert self._lease is not None
        return self._lease.ranks_end_s

    @property
    def is_over(self) -> bool:
        """Whether the agent has ended, or has been silent for too long."""
        assert self._lease is not None
        return not self._is_open or self._lease.must_end()

    def next_order(self, timeout_s: float) -> AgentMessage | None:
        """Next order of the agent; None if no order arrives within the given seconds."""
        try:
            return self._orders.get(timeout=timeout_s) if timeout_s > 0 else self._orders.get_nowait()
        except queue.Empty:
            return None

    def send(self, message: Schema) -> None:
        """Send a message to the agent; any thread may call this method."""
        with self._send_lock:
            # A stopped agent (SIGSTOP) reads nothing: waiting for it would outlast the lease.
            if self._is_open and not write_line(self._outgoing, to_line(message)):
                self._is_open = False

    def _read(self) -> None:
        assert self._lease is not None
        try:
            while (line := self._incoming.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                message = from_agent(line)
                if isinstance(message, NodeHeartbeatAnswer):
                    self._lease.renew(message)
                    self._renewed(self._lease.ranks_end_s)
                else:
                    self._orders.put(message)
        except ValueError as error:
            log.error("the agent sent a line that is no message: %s", error)
        self._is_open = False

    def _send_heartbeats(self) -> None:
        assert self._lease is not None
        beat = 0
        over = threading.Event()
        while self._is_open:
            beat += 1
            self._lease.note_sent(beat)
            moved, progress = self.progress_change
            self.send(NodeHeartbeat(beat=beat, moved=moved, progress=progress))
            over.wait(self._beat_s)
