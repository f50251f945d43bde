"""`python -m benchmarks.laboratory`: rungs of 1, 2 and 4 hosts foretell 8, in slow motion.

Hosts are network namespaces with slow links. Ranks wait instead of computing, and communicate by gloo. The projection is the
product's own. Needs Linux, root, and DeepSpeed; `--from` judges stored measurements without them. Exit code 1 where no
program could be judged, 2 for bad input.
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.laboratory.answer import answer
from benchmarks.laboratory.hosts import RankFailed
from benchmarks.laboratory.ladder import climb
from benchmarks.laboratory.programs import PROGRAMS
from benchmarks.laboratory.runs import Measurements
from benchmarks.laboratory.words import table
from tests.lab import links, requirements

DONE, NOT_JUDGED, BAD_INPUT = 0, 1, 2
_MOST_HOSTS = 16
_FEWEST_STEPS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; returns the exit code."""
    options = _parser().parse_args(arguments)
    if wrong := _wrong(options):
        print(f"error: {wrong}", file=sys.stderr)
        return BAD_INPUT
    # A program in the background ignores SIGINT, and would leave its hosts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    try:
        measurements = Measurements.load(options.stored) if options.stored else climb(options)
    except RankFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return NOT_JUDGED
    if options.save:
        measurements.save(options.save)
    result = answer(measurements)
    print(json.dumps(result) if options.json else table(result))
    return DONE if result["summary"]["programs"] else NOT_JUDGED


def _end(number: int, _: FrameType | None) -> None:
    """End by the exception that takes the laboratory down."""
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laboratory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hosts", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N", help="the last is the target"
    )
    parser.add_argument(
        "--mbit", type=int, default=50, help="bandwidth of each host's link, to which waiting is adapted (default 50)"
    )
    parser.add_argument("--delay-ms", type=float, default=0.0, help="delay of each packet, by netem (default 0)")
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each program (default 8)")
    parser.add_argument("--repeat-target", type=int, default=2, metavar="N", help="runs of the target (default 2)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="store what was measured")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="stored", help="judge stored measurements")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _wrong(options: argparse.Namespace) -> str | None:
    """First thing that is wrong with the options: field, value and remedy."""
    hosts = options.hosts
    if len(hosts) < 2 or hosts != sorted(set(hosts)) or hosts[0] < 1 or hosts[-1] > _MOST_HOSTS:
        return f"--hosts ({hosts}) must be two or more rising numbers from 1 to {_MOST_HOSTS}; try 1 2 4 8"
    if any(count & (count - 1) for count in hosts):
        return f"--hosts ({hosts}) must be powers of two, so that shards and stages divide them; try 1 2 4 8"
    if unknown := [name for name in options.programs if name not in PROGRAMS]:
        return f"--programs ({unknown[0]}) is unknown; choose among {', '.join(PROGRAMS)}"
    if options.mbit < 1:
        return f"--mbit ({options.mbit}) must be at least 1; try 50"
    if options.delay_ms < 0:
        return f"--delay-ms ({options.delay_ms:g}) must be at least 0; try 5"
    if options.steps < _FEWEST_STEPS or options.repeat_target < 1:
        return f"--steps ({options.steps}) must be at least {_FEWEST_STEPS}, --repeat-target ({options.repeat_target}) at least 1"
    if options.stored:
        return None if options.stored.is_file() else f"--from ({options.stored}) does not exist; name a file of --save"
    if lacking := requirements.lacking("none"):
        return f"the laboratory needs {lacking}; judge stored measurements with --from"
    if options.delay_ms and not links.can_delay():
        return f"--delay-ms ({options.delay_ms:g}) needs netem, which this kernel lacks (CONFIG_NET_SCH_NETEM); use 0"
    return None


if __name__ == "__main__":
    sys.exit(main())
