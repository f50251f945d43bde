"""Long-running processes log one JSON object per line on stderr, warnings included."""

import json
import subprocess
import sys

from shardtune.api_schemas import log_lines

SCRIPT = """
import logging, warnings
from shardtune.api_schemas import log_lines
log_lines.configure("INFO")
logging.getLogger("a.b").info("began %s", "here", extra={"study": "s-1"})
warnings.warn("old option")
try:
    raise ValueError("wrong")
except ValueError:
    logging.getLogger("a").exception("failed")
"""


def test_every_line_is_one_json_object_on_stderr() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    entries = [json.loads(line) for line in ran.stderr.splitlines()]
    assert ran.stdout == ""
    assert [entry["level"] for entry in entries] == ["info", "warning", "error"]
    assert (entries[0]["message"], entries[0]["study"]) == ("began here", "s-1")
    assert "old option" in entries[1]["message"] and "ValueError: wrong" in entries[2]["exception"]


def test_a_person_gets_the_text_of_an_entry_and_other_lines_as_they_are() -> None:
    assert log_lines.as_text('{"level": "error", "message": "no GPU"}') == "error: no GPU"
    assert log_lines.as_text('{"level": "error", "message": "x", "exception": "E: y"}') == "error: x\nE: y"
    for line in ("Traceback (most recent call last):", "[1, 2]", '{"other": 1}', ""):
        assert log_lines.as_text(line) == line
