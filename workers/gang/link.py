"""The agent's hold on one node agent: answers its beats, gives it orders, and knows when it is lost and when that is certain."""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.trials.measurements import Progress
from shardtune.workers.clock import now_s
from shardtune.workers.gang.messages import (
    Beat,
    BeatAnswer,
    Begin,
    HelperLost,
    LaunchOver,
    LaunchRejected,
    NodeFailed,
    NodeMessage,
    NodeReady,
    OrderDone,
    RankEnded,
    from_node,
    to_line,
)
from shardtune.workers.gang.pipe import Pipe

_START_S = 60.0
"""For an engine to start the process."""
_SILENCE = 0.75
"""Of the lease; the rest is for ranks to be ended in."""
_SLACK_S = 0.5
"""Over the lease: for processes that were killed at its end to be gone."""

Answer = OrderDone | LaunchOver

log = logging.getLogger(__name__)


class GangEvents:
    """What came from any node: the main thread sleeps on it, and takes the ends of ranks in the order in which they came."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.numbers = itertools.count(1)
        """Of orders, to whichever node."""
        self.ended: deque[RankEnded] = deque()

    def ring(self) -> None:
        """Any thread's."""
        self._event.set()

    def sleep(self, timeout_s: float) -> None:
        """Until something came, at most so long."""
        if self._event.wait(timeout_s):
            self._event.clear()


class NodeLink:
    """One node agent, from the moment its pipe is open. A thread hears it; the main thread asks."""

    def __init__(
        self, pipe: Pipe, begin: Begin, events: GangEvents, ranks_end_in_s: Callable[[], float | None]
    ) -> None:
        """`ranks_end_in_s`: what is left of the agent's own lease; asked in the thread."""
        self.host = pipe.host
        self._pipe, self._lease_s, self._events, self._ranks_end_in_s = pipe, begin.lease_s, events, ranks_end_in_s
        self._began_s = self._heard_s = self._answered_s = now_s()
        self._has_beaten = self._is_closed = False
        self._answering = threading.Lock()
        self._lost: str | None = None
        self.ready: NodeReady | None = None
        self.failed: NodeFailed | None = None
        self.answers: dict[int, Answer] = {}
        self.rejected: LaunchRejected | None = None
        """Of the launch in progress, as the next."""
        self.helper_lost: HelperLost | None = None
        self.progress: tuple[int, Progress | None] = (0, None)
        pipe.send(to_line(begin))
        threading.Thread(target=self._hear, name=f"node-{self.host}", daemon=True).start()

    def _hear(self) -> None:
        try:
            for line in self._pipe.lines():
                self._take_in(from_node(line))
        except ValueError as error:
            log.error("host %s said something that is no message: %s", self.host, error)
        self._is_closed = True
        self._events.ring()

    def _take_in(self, message: NodeMessage) -> None:
        self._heard_s = now_s()
        match message:
            case Beat():
                self._answer(message)
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
            case OrderDone() | LaunchOver():
                self.answers[message.order] = message
        self._events.ring()

    def _answer(self, beat: Beat) -> None:
        self._has_beaten = True
        if beat.moved != self.progress[0]:
            self.progress = (beat.moved, beat.progress)
            self._events.ring()
        with self._answering:
            if self._lost is None:
                # Before the sending: the node's lease must never end after we believe it to.
                self._answered_s = now_s()
                left_s = self._ranks_end_in_s()
                self._pipe.send(to_line(BeatAnswer(beat=beat.beat, lease_s=self._lease_s, ranks_end_in_s=left_s)))

    def order(self, make: Callable[[int], Schema]) -> int:
        """Send an order; its number, under which the answer will be."""
        number = next(self._events.numbers)
        self._pipe.send(to_line(make(number)))
        return number

    def wait(self, timeout_s: float) -> None:
        """Until something came from any node, at most so long."""
        self._events.sleep(timeout_s)

    def is_now(self, fingerprint: Fingerprint) -> None:
        """The node has looked again at what its host is."""
        assert self.ready is not None
        inventory = self.ready.inventory.model_copy(update={"fingerprint": fingerprint})
        self.ready = self.ready.model_copy(update={"inventory": inventory})

    def begin_launch(self) -> None:
        """Forget what came of the launch before."""
        self.rejected, self.helper_lost, self.progress = None, None, (0, None)

    @property
    def why_lost(self) -> str | None:
        """Why nothing more is to be expected of the node, for good: its beats are not answered any more. None while it lives."""
        with self._answering:
            self._lost = self._lost or self._why_lost()
            return self._lost

    def _why_lost(self) -> str | None:
        if self.failed is not None:
            return self.failed.message
        if self._is_closed:
            return f"the node agent ended; its last words: {self._pipe.last_words() or '(none)'}"
        silent_s = now_s() - self._heard_s
        if not self._has_beaten:
            return f"no node agent started in {silent_s:.0f} s" if silent_s > _START_S else None
        # As long as the node itself waits.
        return f"the host was silent for {silent_s:.1f} s" if silent_s > _SILENCE * self._lease_s else None

    def give_up(self, why: str) -> None:
        """Answer no more: the node ends by its lease."""
        with self._answering:
            self._lost = self._lost or why

    @property
    def certain_s(self) -> float:
        """From when on, on `clock.now_s`, nothing of a lost node can live any more."""
        return self._answered_s + self._lease_s + _SLACK_S

    def close(self) -> None:
        """Let the node end."""
        self.give_up("the worker ended")
        self._pipe.close()


Make = Callable[[NodeLink, int], Schema]


def ask_all(links: Sequence[NodeLink], make: Make, limit_s: float = 60.0) -> list[OrderDone]:
    """Give each an order at once and wait for all answers; a node that is lost meanwhile, or does not answer, answers with that."""
    numbers = [link.order(partial(make, link)) for link in links]
    ends_s = now_s() + limit_s
    return [_answer(link, number, ends_s) for link, number in zip(links, numbers, strict=True)]


def _answer(link: NodeLink, number: int, ends_s: float) -> OrderDone:
    while (answer := link.answers.pop(number, None)) is None:
        lost = link.why_lost
        if lost is not None:
            return OrderDone(order=number, error=lost[:8000])
        if now_s() > ends_s:
            link.give_up("an order was not answered")
            continue
        link.wait(0.2)
    assert isinstance(answer, OrderDone)
    return answer
