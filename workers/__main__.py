"""`python -m shardtune.workers`: the agent (default), `run-trial FILE` without a service, `measure-hardware`, `detect`.

Results on stdout, everything else on stderr. Exit codes: 0 done, 1 could not work, 2 bad input, 3 the trial ran and
failed (its failure is printed), 130 interrupted.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from shardtune.api_schemas.credentials import KeySource
from shardtune.workers.agent.client import ClientError
from shardtune.workers.commands import agent, look, run_trial
from shardtune.workers.commands.exit_codes import BAD_INPUT, COULD_NOT_WORK
from shardtune.workers.config.options import machine_options
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.launchers.base import LaunchFailed, RanksAlive
from shardtune.workers.machine.device_lock import DevicesBusy
from shardtune.workers.machine.device_watch import DevicesUnfit
from shardtune.workers.machine.inventory import DetectionFailed
from shardtune.workers.trial_dir import DiskFull


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # One line per request is noise at a heartbeat every two seconds.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        # Before any child is started: ranks run other people's models, and have no business with the key.
        options.keys = KeySource.taken()
        settings = _settings(options)
        code: int = options.command(settings, options)
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        return _say(error, BAD_INPUT)
    except (
        ClientError,
        DetectionFailed,
        DiskFull,
        LaunchFailed,
        RanksAlive,
        DevicesBusy,
        DevicesUnfit,
    ) as error:
        return _say(error, COULD_NOT_WORK)
    return code


def _say(error: Exception, code: int) -> int:
    print(f"error: {_readable(error)}", file=sys.stderr)
    return code


def _readable(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        _readable_item(".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, "), item["input"])
        for item in error.errors()
    )


def _readable_item(field: str, message: str, given: object) -> str:
    """Our own messages begin with field and value; pydantic's name neither."""
    return message if not field or message.startswith(f"{field} (") else f"{field}: {message} (got {given!r:.200})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shardtune.workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(command=agent.run)
    parser.add_argument("--service", metavar="URL", help="base URL of the service")
    parser.add_argument("--name", help="stable name of this worker (default: host name and work directory)")
    machine_options(parser)
    commands = parser.add_subparsers(title="other commands", metavar="COMMAND")

    trial = commands.add_parser("run-trial", help="run one trial from a JSON file, without a service")
    trial.set_defaults(command=run_trial.run)
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
    speed.set_defaults(command=look.measure_hardware)
    speed.add_argument("--json", action="store_true", help="print a HardwareReport as JSON")
    machine_options(speed)

    shown = commands.add_parser("detect", help="print what this machine offers")
    shown.set_defaults(command=look.detect)
    shown.add_argument("--json", action="store_true", help="print an Inventory as JSON")
    machine_options(shown)
    return parser


def _settings(options: argparse.Namespace) -> WorkerSettings:
    given = {name: value for name, value in vars(options).items() if name in WorkerSettings.model_fields}
    return WorkerSettings(**{name: value for name, value in given.items() if value is not None})


if __name__ == "__main__":
    sys.exit(main())
