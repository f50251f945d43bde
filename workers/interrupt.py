"""SIGTERM and SIGINT as a flag that loops look at, so that ranks are ended in order and nothing is half-written."""

import signal
from types import FrameType


class Interrupt:
    """Set by the first signal. A plain attribute: locks of `threading.Event` are not safe inside a signal's frame."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def install(self) -> "Interrupt":
        """Catch the signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def reason(self) -> str | None:
        """Why to end, None while there is no reason."""
        return None if self.signal is None else f"the worker was stopped by {signal.Signals(self.signal).name}"
