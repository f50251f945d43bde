"""`python -m shardtune.workers`: the agent (default), `run-trial FILE` without a service, `measure-hardware`, `detect`.

Results on stdout, everything else on stderr. Exit codes: 0 done, 1 could not work, 2 bad input, 3 the trial ran and
failed (its failure is printed), 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from shardtune.workers.config.options import machine_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker's command that the arguments name; returns the exit code."""
    options = _parser().parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Imported after the options were parsed: `--help` must not wait for the commands' imports.
    code: int = import_module("shardtune.workers.commands.dispatch").dispatch(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shardtune.workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(command="agent")
    parser.add_argument("--service", metavar="URL", help="base URL of the service")
    parser.add_argument("--name", help="stable name of this worker (default: host name and work directory)")
    parser.add_argument(
        "--split",
        metavar="N,N",
        help="several workers on this machine, by ranks of each: 1,8 is one of each GPU and one of all eight",
    )
    parser.add_argument(
        "--exit-when-idle",
        type=float,
        dest="exit_when_idle_minutes",
        metavar="MINUTES",
        help="end with exit code 0 after so many minutes without a run (default: wait for runs until stopped)",
    )
    machine_options(parser)
    commands = parser.add_subparsers(title="other commands", metavar="COMMAND")

    trial = commands.add_parser("run-trial", help="run one trial from a JSON file, without a service")
    trial.set_defaults(command="run-trial")
    trial.add_argument("file", type=Path, help="a TrialTask as JSON, such as best/config.json; - reads stdin")
    trial.add_argument(
        "--trace", action="store_true", help="record steps under torch's profiler instead of timing them"
    )
    trial.add_argument("--folder", default="run-trial", help="name of its folder within --work-dir")
    trial.add_argument("--json", action="store_true", help="print one JSON object instead of a summary")
    trial.add_argument("--deadline-s", type=float, default=3600.0, help="hard limit of the trial")
    trial.add_argument("--no-progress-s", type=float, default=600.0, help="limit without any step")
    machine_options(trial)

    speed = commands.add_parser("measure-hardware", help="measure what predictions need: a minute, kept for the agent")
    speed.set_defaults(command="measure-hardware")
    speed.add_argument("--json", action="store_true", help="print a HardwareReport as JSON")
    machine_options(speed)

    detect = commands.add_parser("detect", help="print what this machine offers")
    detect.set_defaults(command="detect")
    detect.add_argument("--json", action="store_true", help="print an Inventory as JSON")
    machine_options(detect)
    return parser


if __name__ == "__main__":
    sys.exit(main())
