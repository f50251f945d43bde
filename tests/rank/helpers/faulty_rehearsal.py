"""`python -m tests.rank.helpers.faulty_rehearsal ANSWER < TASK`: a rehearsing process at fault; the task's rank says how."""

import os
import signal
import sys
import time
from pathlib import Path

from shardtune.api_schemas.trials.leases import RehearsalTask

FAULTS = ("killed", "hangs", "nan", "huge", "negative", "both", "nothing", "exits")
_SEEN = (
    '{{"seen": {{"rank": 0, "blocks": 4, "peak_bytes": {peak}, "parts": {{}}, "process_groups": 1, "set_up_s": {set_up}, '
    '"cpu_s": 1.0, "peak_rss_mib": 400.0}}}}'
)
_ANSWERS = {
    "nan": _SEEN.format(peak=1, set_up="NaN"),
    "huge": _SEEN.format(peak="1e30", set_up=1),
    "negative": _SEEN.format(peak=-1, set_up=1),
    "both": _SEEN.format(peak=1, set_up=1)[:-1] + ', "problem": {"code": "time", "message": "late"}}',
    "nothing": "",
}


def main() -> None:
    """Behave as the fault says."""
    fault = FAULTS[RehearsalTask.model_validate_json(sys.stdin.read()).rank]
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        time.sleep(1000)
    if fault == "exits":
        sys.exit(7)
    Path(sys.argv[1]).write_text(_ANSWERS[fault])


if __name__ == "__main__":
    main()
