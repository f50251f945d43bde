"""Score the predictor against published measurements: `python -m benchmarks.predictor --data FILE --json`.

Any CSV in the format of `benchmarks/data/published.csv`. Errors are fractions of the measured value.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.predictor.columns import Misread
from benchmarks.predictor.scores import DATA, score


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictor", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA / "published.csv", help="CSV of measurements")
    parser.add_argument("--hardware", type=Path, default=DATA / "hardware.csv", help="CSV with GPU names and aliases")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    for path in (options.data, options.hardware):
        if not path.is_file():
            print(
                f"file ({path}) does not exist; give a CSV in the format of {DATA / 'published.csv'}", file=sys.stderr
            )
            return 2
    try:
        result = score(options.data, options.hardware)
    except Misread as error:
        print(f"{options.data}: {error}", file=sys.stderr)
        return 2
    except (KeyError, UnicodeDecodeError) as error:
        print(f"{options.data} is not in the format of published.csv: {error}; keep its header line", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
