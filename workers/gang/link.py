"""Link of the agent to one node agent: answers the node agent's heartbeats, sends orders to it, and detects its loss
and the time from which the loss is certain."""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.clock import now_s
from shardtune.workers.gang.messages import (
    Begin,
    HelperLost,
    LaunchEnded,
    LaunchRejected,
    NodeFailed,
    NodeHeartbeat,
    NodeHeartbeatAnswer,
    NodeMessage,
    NodeReady,
    OrderDone,
    RankEnded,
    from_node,
    to_line,
)
from shardtune.workers.gang.pipe import Pipe

_START_S = 60.0
"""Seconds allowed for an engine (the program that owns the hosts, such as Slurm) to start the node agent on a host."""
_SILENCE = 0.75
"""Fraction of the node agent's lease after which a silent host counts as lost. In the rest of the lease the node agent
itself ends the host's ranks."""
_SLACK_S = 0.5
"""Seconds that processes may take to disappear after the end of the node agent's lease, when they are killed."""

Answer = OrderDone | LaunchEnded

log = logging.getLogger(__name__)


class GangEvents:
    """Events of all node agents (one process on each host). The main thread waits for them, and handles the ends of
    ranks in the order in which they are reported."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.numbers = itertools.count(1)
        """Counter from which each order to a node agent takes its number; no two orders have the same number, even if
        they go to different hosts."""
        self.ended: deque[RankEnded] = deque()

    def ring(self) -> None:
        """Wake the main thread; any thread may call this method."""
        self._event.set()

    def sleep(self, timeout_s: float) -> None:
        """Sleep until an event of a node agent arrives, at most `timeout_s` seconds."""
        if self._event.wait(timeout_s):
            self._event.clear()


class NodeLink:
    """Link from the agent to the node agent of one host, which begins when their pipe is open. A thread reads the node
    agent's messages; the main thread sends orders."""

    def __init__(
        self, pipe: Pipe, begin: Begin, events: GangEvents, ranks_end_in_s: Callable[[], float | None]
    ) -> None:
        """Open the link to a node agent. `ranks_end_in_s` returns the seconds left of the agent's own lease; the link's
        thread calls it for each heartbeat."""
        self.host = pipe.host
        self._pipe, self._lease_s, self._events, self._ranks_end_in_s = pipe, begin.lease_s, events, ranks_end_in_s
        self._began_s = self._last_message_s = self._answered_s = now_s()
        self._has_beaten = self._is_closed = False
        self._answer_lock = threading.Lock()
        self._lost: str | None = None
        self.ready: NodeReady | None = None
        self.failed: NodeFailed | None = None
        self.answers: dict[int, Answer] = {}
        self.rejected: LaunchRejected | None = None
        """Node agent's message that it could not start the ranks of the present launch; None if it has sent no such
        message."""
        self.helper_lost: HelperLost | None = None
        """Node agent's message that a helper process of its host (such as the fork server) died during the present
        launch; None if it has sent no such message."""
        self.progress: tuple[int, Progress | None] = (0, None)
        """Progress in the present launch: a counter that changes with each progress of a rank, and the last progress
        that the host reported (None before the first)."""
        pipe.send(to_line(begin))
        threading.Thread(target=self._read_messages, name=f"node-{self.host}", daemon=True).start()

    def _read_messages(self) -> None:
        try:
            for line in self._pipe.lines():
                self._handle(from_node(line))
        except ValueError as error:
            log.error("host %s said something that is no message: %s", self.host, error)
        self._is_closed = True
        self._events.ring()

    def _handle(self, message: NodeMessage) -> None:
        self._last_message_s = now_s()
        match message:
            case NodeHeartbeat():
                self._answer_heartbeat(message)
                return
            case NodeReady():
                self.ready = message
            case NodeFailed():
                self.failed = message
            case RankEnded():
                self._events.ended.append(message)
            case LaunchRejected():
                self.rejected = message
            case HelperLost():
                self.helper_lost = message
            case OrderDone() | LaunchEnded():
                self.answers[message.order] = message
        self._events.ring()

    def _answer_heartbeat(self, beat: NodeHeartbeat) -> None:
        self._has_beaten = True
        if beat.moved != self.progress[0]:
            self.progress = (beat.moved, beat.progress)
            self._events.ring()
        # Under the lock: an answer after the node was given up would renew a lease whose end is already counted on.
        with self._answer_lock:
            if self._lost is None:
                # Before sending: the node's lease must never end later than this side believes.
                self._answered_s = now_s()
                left_s = self._ranks_end_in_s()
                self._pipe.send(
                    to_line(NodeHeartbeatAnswer(beat=beat.beat, lease_s=self._lease_s, ranks_end_in_s=left_s))
                )

    def order(self, make: Callable[[int], Schema]) -> int:
        """Send an order to the node agent; returns the order's number, under which the answer will arrive."""
        number = next(self._events.numbers)
        self._pipe.send(to_line(make(number)))
        return number

    def wait(self, timeout_s: float) -> None:
        """Sleep until any node agent reports an event, at most `timeout_s` seconds."""
        self._events.sleep(timeout_s)

    def update_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Replace the host's fingerprint (hardware and software versions) after the node agent has inspected the host
        again."""
        assert self.ready is not None
        inventory = self.ready.inventory.model_copy(update={"fingerprint": fingerprint})
        self.ready = self.ready.model_copy(update={"inventory": inventory})

    def begin_launch(self) -> None:
        """Forget what the node agent reported during the previous launch: rejection, lost helper process and
        progress."""
        self.rejected, self.helper_lost, self.progress = None, None, (0, None)

    @property
    def loss_reason(self) -> str | None:
        """Reason why the node agent is lost permanently, so that its heartbeats are not answered any more. None while
        it is alive."""
        with self._answer_lock:
            self._lost = self._lost or self._find_loss()
            return self._lost

    def _find_loss(self) -> str | None:
        if self.failed is not None:
            return self.failed.message
        if self._is_closed:
            return f"the node agent ended; its last words: {self._pipe.log_end() or '(none)'}"
        silent_s = now_s() - self._last_message_s
        if not self._has_beaten:
            return f"no node agent started in {silent_s:.0f} s" if silent_s > _START_S else None
        # Like the node, which waits as long for an answer.
        return f"the host was silent for {silent_s:.1f} s" if silent_s > _SILENCE * self._lease_s else None

    def give_up(self, reason: str) -> None:
        """Stop answering the node agent's heartbeats, so that it ends with its lease."""
        with self._answer_lock:
            self._lost = self._lost or reason

    @property
    def certain_s(self) -> float:
        """Time on `clock.now_s` after which all processes of a lost host must have ended."""
        return self._answered_s + self._lease_s + _SLACK_S

    def close(self) -> None:
        """End the link, and with it the node agent on the host."""
        self.give_up("the worker ended")
        self._pipe.close()


Make = Callable[[NodeLink, int], Schema]


def ask_all(links: Sequence[NodeLink], make: Make, limit_s: float = 60.0) -> list[OrderDone]:
    """Send an order to each node agent at once and wait for all answers.

    A node agent that is lost meanwhile, or does not answer in time, is treated as if it had answered with an error.
    """
    numbers = [link.order(partial(make, link)) for link in links]
    ends_s = now_s() + limit_s
    return [_await_answer(link, number, ends_s) for link, number in zip(links, numbers, strict=True)]


def _await_answer(link: NodeLink, number: int, ends_s: float) -> OrderDone:
    while (answer := link.answers.pop(number, None)) is None:
        reason = link.loss_reason
        if reason is not None:
            return OrderDone(order=number, error=reason[:8000])
        if now_s() > ends_s:
            link.give_up("an order was not answered")
            continue
        link.wait(0.2)
    assert isinstance(answer, OrderDone)
    return answer
