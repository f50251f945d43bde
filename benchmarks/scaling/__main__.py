"""Project published runs from their small sizes to their large ones: `python -m benchmarks.scaling --data FILE… --json`.

Files in the format of `benchmarks/data/published.csv` or `nanotron_sweep.csv`. Each group is anchored at its smallest
size, or at the two smallest; drift and band are learnt without the group's own source. Errors are fractions of what was
measured, and each source counts equally.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.parallel.tables import Misread as MisreadSweep
from benchmarks.predictor.columns import Misread
from benchmarks.scaling.groups import DATA
from benchmarks.scaling.scores import score

FILES = tuple(DATA / f"{name}.csv" for name in ("published", "internevo_scaling", "nanotron_dp", "nanotron_sweep"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", default=FILES, help="CSV files of measurements")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    for path in options.data:
        if not path.is_file():
            print(f"file ({path}) does not exist; give a CSV in the format of {FILES[0]}", file=sys.stderr)
            return 2
    try:
        result = score(options.data)
    except (Misread, MisreadSweep) as error:
        print(f"--data: {error}", file=sys.stderr)
        return 2
    except (KeyError, UnicodeDecodeError) as error:
        print(f"--data: a file is in neither format ({error}); keep the header line of its table", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
