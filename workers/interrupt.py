"""SIGTERM and SIGINT as a flag that loops check, so that ranks are ended in order and no file is half-written."""

import signal
from types import FrameType


class Interrupt:
    """Flag that the first SIGTERM or SIGINT sets."""

    def __init__(self) -> None:
        # A plain attribute: locks of `threading.Event` are not safe inside a signal's frame.
        self.signal: int | None = None

    def install(self) -> "Interrupt":
        """Install the handlers of SIGTERM and SIGINT, which set the flag."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def reason(self) -> str | None:
        """Reason why the process must end, such as a signal; None while there is no reason."""
        return None if self.signal is None else f"the worker was stopped by {signal.Signals(self.signal).name}"
