"""Log lines of every long-running process, service and worker alike: one JSON object per line, on stderr."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_STANDARD_FIELDS = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formatter that writes each log record as one JSON object: the message, and all values passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as one line of JSON."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {
            key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS and value is not None
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def configure(level: str) -> None:
    """Send all logs and Python's warnings of the process to stderr as JSON lines."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    # Warnings would otherwise be lines of another format on the same stream.
    logging.captureWarnings(True)


def as_text(line: str) -> str:
    """Convert a JSON log line to text for people: level, message and exception. A line that is no log entry stays as it
    is."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, Mapping) or "message" not in entry:
        return line
    exception = f"\n{entry['exception']}" if entry.get("exception") else ""
    return f"{entry.get('level', 'info')}: {entry['message']}{exception}"
