"""Turn signals into exceptions, so that a command cleans up before it ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C by raising KeyboardInterrupt, so that ranks are stopped and results are kept."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT, too: a shell without job control starts background commands with SIGINT ignored.
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
