"""Structured logs on stderr: one JSON object per line, with study, trial, run and attempt if known."""

import json
import logging
import sys
from datetime import UTC, datetime

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
    """Send all logs of the process to stderr as JSON lines."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    # Leases and heartbeats would fill the log with access lines.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # They log whole URLs, and the URL of a webhook may be its secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
