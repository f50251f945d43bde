"""Compare one exported configuration under two installations, such as two releases of torch: ends with 1 if the new one
is slower.

    python examples/slower_torch.py best/config.json --old old/bin/shardtune --new new/bin/shardtune

Both run the configuration in pairs, in an order drawn at random, each run in new processes. Shardtune's own paired test
decides: noise alone makes it say "slower" in at most 2.5 % of all comparisons. Pairs end as soon as they decide.
"""

import argparse
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, MOST_PAIRS
from shardtune.tuner.verdict.paired_test import decide

SAME, SLOWER, FAILED = 0, 1, 2
Measure = Callable[[str], float]
"""Function that runs the configuration with one installation and returns its tokens/s/GPU."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="exported configuration, such as best/config.json")
    parser.add_argument("--old", required=True, help="command `shardtune` of the present installation")
    parser.add_argument("--new", required=True, help="command `shardtune` of the new installation")
    parser.add_argument("--pairs", type=int, default=12, help="maximum number of pairs (default: 12)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="slowdown that is accepted (default: 0.02)")
    options = parser.parse_args(arguments)
    if not FEWEST_PAIRS <= options.pairs <= MOST_PAIRS:
        parser.error(f"--pairs ({options.pairs}) must be between {FEWEST_PAIRS} and {MOST_PAIRS}; try 12")
    if not 0 <= options.tolerance < 1:
        parser.error(f"--tolerance ({options.tolerance:g}) must be at least 0 and below 1; try 0.02")
    try:
        return compare(lambda command: measured_speed(command, options.file), options)
    except (RuntimeError, OSError, ValueError, ArithmeticError) as error:
        # Uncaught, any error would end Python with 1, which says "slower".
        print(error, file=sys.stderr)
        return FAILED


def compare(measure: Measure, options: argparse.Namespace) -> int:
    """Measure pairs until they decide, and say what they show."""
    log_ratios = list[float]()
    for number in range(1, options.pairs + 1):
        # A random order, so that drift of the machine favours neither side.
        order = random.sample((options.old, options.new), 2)
        speeds = {command: measure(command) for command in order}
        ratio = speeds[options.new] / speeds[options.old]
        print(
            f"pair {number}: new {speeds[options.new]:,.0f}, old {speeds[options.old]:,.0f} tokens/s/GPU ({ratio:.3f}x)"
        )
        # The question is whether the old one is faster, by more than what is accepted.
        log_ratios.append(-math.log(ratio) + math.log1p(-options.tolerance))
        if decide(log_ratios, options.pairs) == "faster":
            slowdown = 1 - math.exp(-median(log_ratios)) * (1 - options.tolerance)
            print(f"slower: the new installation loses {slowdown:.1%} (median of {number} pairs)")
            return SLOWER
        if decide(log_ratios, options.pairs) == "not_shown":
            break
    print(f"not shown to be slower by more than {options.tolerance:.0%} in {len(log_ratios)} pairs")
    return SAME


def measured_speed(command: str, file: Path) -> float:
    """Run the configuration once, and return its tokens/s/GPU.

    Raises:
        RuntimeError: the run failed; the message holds its last lines.
    """
    ran = subprocess.run([command, "run-trial", str(file), "--json"], capture_output=True, text=True, check=False)
    try:
        speed = json.loads(ran.stdout.strip().rpartition("\n")[2])["tokens_per_s_per_gpu"]
    except (ValueError, KeyError, TypeError):
        tail = "\n".join((ran.stdout + ran.stderr).splitlines()[-10:])
        raise RuntimeError(f"{command} run-trial {file} failed with exit code {ran.returncode}:\n{tail}") from None
    return float(speed)


if __name__ == "__main__":
    sys.exit(main())
