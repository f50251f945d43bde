"""`python -m workers.rank TRIAL_DIR`: one rank in a process of its own, also under torchrun."""

import importlib
import sys
from pathlib import Path

from workers.rank import lifeline


def main() -> int:
    """Tie the process to its launcher, then import what takes seconds, and run."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m workers.rank TRIAL_DIR\n")
        return 2
    lifeline.tie_to_parent()
    rank = importlib.import_module("workers.rank.main")
    return int(rank.run(Path(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
