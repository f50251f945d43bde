"""Execution of a worker's command: reads the settings, starts the log, and turns errors into exit codes."""

import argparse
import logging
import sys
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from shardtune.api_schemas import log_lines
from shardtune.api_schemas.access.credentials import KeySource
from shardtune.workers import disk_errors
from shardtune.workers.agent.client_errors import ClientError
from shardtune.workers.commands import agent, detect, run_trial
from shardtune.workers.commands.exit_codes import BAD_INPUT, COULD_NOT_WORK
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.launchers.base import LaunchFailed, RanksAlive
from shardtune.workers.machine.device_lock import DevicesBusy
from shardtune.workers.machine.device_watch import DevicesUnfit
from shardtune.workers.machine.inventory import DetectionFailed
from shardtune.workers.trial_dir import DiskFull

COMMANDS: Mapping[str, Callable[[WorkerSettings, argparse.Namespace], int]] = {
    "agent": agent.run,
    "run-trial": run_trial.run,
    "measure-hardware": detect.measure_hardware,
    "detect": detect.detect,
}


def dispatch(options: argparse.Namespace) -> int:
    """Run the command that the command-line options name; returns the exit code."""
    if options.command == "agent":
        log_lines.configure("INFO")
    else:
        # A person waits for these commands, and reads their lines.
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    # One line per request is noise at a heartbeat every two seconds.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        # Before any child is started: ranks run other people's models, and must not inherit the key.
        options.keys = KeySource.take_from_environment()
        return COMMANDS[options.command](_settings(options), options)
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        return _print_error(error, BAD_INPUT)
    except (
        ClientError,
        DetectionFailed,
        DiskFull,
        LaunchFailed,
        RanksAlive,
        DevicesBusy,
        DevicesUnfit,
    ) as error:
        return _print_error(error, COULD_NOT_WORK)
    except OSError as error:
        # Such a disk may be met in any file that a worker writes.
        if not disk_errors.is_of_disk(error):
            raise
        return _print_error(DiskFull(f"{error}; free some space, or name a folder on another disk"), COULD_NOT_WORK)


def _print_error(error: Exception, code: int) -> int:
    print(f"error: {_readable(error)}", file=sys.stderr)
    return code


def _readable(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        _readable_item(".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, "), item["input"])
        for item in error.errors()
    )


def _readable_item(field: str, message: str, value: object) -> str:
    """Message about one invalid setting. The project's own messages begin with field and value; pydantic's messages name
    neither of them."""
    return message if not field or message.startswith(f"{field} (") else f"{field}: {message} (got {value!r:.200})"


def _settings(options: argparse.Namespace) -> WorkerSettings:
    options_by_name = {name: value for name, value in vars(options).items() if name in WorkerSettings.model_fields}
    return WorkerSettings(**{name: value for name, value in options_by_name.items() if value is not None})
