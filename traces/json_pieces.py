"""Read a large JSON trace one event at a time, so that memory use stays small and a file that is too large is rejected
early."""

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from shardtune.api_schemas.printable_text import printable

EVENTS = "traceEvents"
_CHUNK = 1 << 20
_BETWEEN = re.compile(r"[\s,]*")
_LARGEST = 1 << 23
"""Maximum number of characters of one JSON value. A value that is not complete within this length is an error, and no
more text is read for it."""
_MARGIN = 64
"""Number of characters at the end of the buffer in which a number may not be complete yet."""


class UnreadableTrace(ValueError):
    """Error for a trace that cannot be analysed; the message contains the trace's name, the problem and the remedy."""

    def __init__(self, message: str) -> None:
        # File names and parts of a trace are in it, which must not reach a terminal as they are.
        super().__init__(printable(message))


def too_large(name: str, most_bytes: int) -> UnreadableTrace:
    """Return the error for a trace that is larger than `most_bytes` after decompression."""
    return UnreadableTrace(
        f"trace ({name}) has more than {most_bytes >> 20:,} MiB of JSON, the most that is read; record fewer steps "
        "(torch.profiler.schedule, active=3) without stacks and memory"
    )


class JsonPieces:
    """Incremental reader of a Chrome trace in JSON: an object with `traceEvents`, or the bare list of events."""

    def __init__(self, stream: BinaryIO, name: str, most_bytes: int) -> None:
        self._stream, self._name, self._most_bytes = stream, name, most_bytes
        self._decoder = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._at, self._read, self._is_over = "", 0, 0, False

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield each event under `traceEvents`, and every other top-level key with its value, in the order of the file.

        Raises:
            UnreadableTrace: the file is cut off, is not JSON, or has more than `most_bytes`.
        """
        opening = self._peek()
        if opening == "[":
            yield from ((EVENTS, event) for event in self._elements())
            return
        if opening != "{":
            raise UnreadableTrace(f"trace ({self._name}) is no JSON: it begins with {opening!r}; {_REMEDY}")
        self._at += 1
        while self._peek() != "}":
            key = self._value()
            self._skip(":")
            if not isinstance(key, str):
                raise UnreadableTrace(
                    f"trace ({self._name}) is no JSON near byte {self._read}: a name is no text; {_REMEDY}"
                )
            if key == EVENTS and self._peek() == "[":
                yield from ((EVENTS, event) for event in self._elements())
            else:
                yield key, self._value()

    def _elements(self) -> Iterator[Any]:
        self._skip("[")
        while self._peek() != "]":
            yield self._value()
        self._at += 1

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise UnreadableTrace(
                    f"trace ({self._name}) is nested too deeply near byte {self._read}; {_REMEDY}"
                ) from None
            except ValueError as error:
                # Also a number of thousands of digits, which Python does not convert. Most likely it goes on in the next chunk.
                if not self._fill():
                    raise self._cut() from None
                if len(self._text) - self._at > _LARGEST:
                    raise UnreadableTrace(
                        f"trace ({self._name}) has a value of more than {_LARGEST >> 20} MiB, or is no JSON near byte "
                        f"{self._read}: {getattr(error, 'msg', error)}; {_REMEDY}"
                    ) from None
                continue
            if end > len(self._text) - _MARGIN and not isinstance(value, dict | list | str) and self._fill():
                continue
            self._at = end
            return value

    def _skip(self, char: str) -> None:
        if self._peek() != char:
            raise UnreadableTrace(
                f"trace ({self._name}) is no JSON near byte {self._read}: {char!r} is missing; {_REMEDY}"
            )
        self._at += 1

    def _peek(self) -> str:
        """Return the next character that is neither whitespace nor a comma."""
        while True:
            separators = _BETWEEN.match(self._text, self._at)
            assert separators is not None
            self._at = separators.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                raise self._cut()

    def _fill(self) -> bool:
        """Read more text into the buffer; return False at the end of the file."""
        if self._is_over:
            return False
        try:
            chunk = self._stream.read(_CHUNK)
        except (EOFError, OSError, zlib.error) as error:
            raise UnreadableTrace(f"trace ({self._name}) cannot be read to its end: {error}; {_REMEDY}") from None
        self._read += len(chunk)
        if self._read > self._most_bytes:
            raise too_large(self._name, self._most_bytes)
        if not chunk:
            self._is_over = True
            return False
        self._text = self._text[self._at :] + self._utf8.decode(chunk)
        self._at = 0
        return True

    def _cut(self) -> UnreadableTrace:
        return UnreadableTrace(
            f"trace ({self._name}) is cut: it ends after {self._read:,} bytes in mid-JSON; {_REMEDY}"
        )


_REMEDY = "write it again (the profiler's export must have ended), or leave it out"
