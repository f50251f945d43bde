"""Write `tuner/projection/published_errors.py` from the published rows: `python -m benchmarks.scaling.learn`."""

import sys
from pathlib import Path

from benchmarks.parallel.tables import read
from benchmarks.scaling.groups import DATA, published, swept
from benchmarks.scaling.kinds import kind_errors
from benchmarks.scaling.pairs import errors_by_source

_PATH = Path(__file__).parents[2] / "tuner" / "projection" / "published_errors.py"
_HEADER = '''"""Errors of projections of published scaling runs, by source: what `structural` learns drift and widths from.

Each entry is a `structural.ScalingError`: doublings of the GPUs, axes that the anchor did not show, logarithm of measured
over projected time, half-width of the band that communication left open. Anchored at the smallest size of each group.
Written by `python -m benchmarks.scaling.learn`.
"""

PUBLISHED_KIND_ERRORS: dict[str, tuple[float, ...]] = {{
{kinds}
}}
"""Logarithms of measured over projected time, of runs projected from another kind of GPU, by source."""

PUBLISHED_ERRORS: dict[str, tuple[tuple[float, int, float, float], ...]] = {{
'''


def main() -> int:
    """Command line."""
    groups = [
        group for name in ("published", "internevo_scaling", "nanotron_dp") for group in published(DATA / f"{name}.csv")
    ]
    groups += swept(read(DATA / "nanotron_sweep.csv").values())
    lines = []
    for source, errors in sorted(errors_by_source(groups).items()):
        lines += [f'    "{source.partition(":")[0]}": (', *(f"        {tuple(error)}," for error in errors), "    ),"]
    kinds = [
        f'    "{source.partition(":")[0]}": ({", ".join(map(str, errors))},),'
        for source, errors in sorted(kind_errors(DATA / "published.csv").items())
    ]
    _PATH.write_text(_HEADER.format(kinds="\n".join(kinds)) + "\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
