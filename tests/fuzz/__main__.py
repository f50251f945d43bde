"""Long run of the fuzzers: `python -m tests.fuzz --examples 100000 [--target cron] [--seed 7]`."""

import argparse
import json
import sys
import time
import traceback

from tests.fuzz.pages import page_target
from tests.fuzz.readers import READERS, Target
from tests.fuzz.run import feed, limit_memory

_BATCH = 10_000
"""Examples of one seed: Hypothesis remembers all that it has drawn of one."""


def main() -> int:
    """Try the targets; exit code 1 if one of them failed."""
    names = [*(target.name for target in READERS), "pages"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=10_000, help="Inputs for each target.")
    parser.add_argument("--target", choices=names, action="append", help="Only this target; may be repeated.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = options.target or names
    is_well = True
    with page_target() as pages:
        limit_memory()
        for target in (*READERS, pages):
            if target.name in chosen:
                is_well &= _feed(target, options.examples, options.seed)
    return 0 if is_well else 1


def _feed(target: Target, examples: int, seed: int) -> bool:
    started_s, done, finding = time.monotonic(), 0, None
    while done < examples and finding is None:
        count = min(_BATCH, examples - done)
        try:
            feed(target, count, seed + done)
        except Exception:  # noqa: BLE001 -- whatever a reader raises is the finding
            finding = traceback.format_exc()[-3000:]
        done += count
    line = {"target": target.name, "examples": done, "seconds": round(time.monotonic() - started_s, 1)}
    print(json.dumps(line | ({"finding": finding} if finding else {})), flush=True)
    return finding is None


if __name__ == "__main__":
    sys.exit(main())
