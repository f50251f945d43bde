"""`python -m shardtune.workers`: the agent (default), `run-trial FILE` without a service, `measure-hardware`, `detect`.

Results on stdout, everything else on stderr. Exit codes: 0 done, 1 could not work, 2 bad input, 3 the trial ran and
failed (its failure is printed), 130 interrupted.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shardtune.api_schemas.credentials import KeySource
from shardtune.api_schemas.failures import Failure
from shardtune.api_schemas.leases import Task
from shardtune.api_schemas.native_dtypes import flops_per_s
from shardtune.workers.agent.attempt import Workplace, attempt
from shardtune.workers.agent.client import ClientError, WorkerClient
from shardtune.workers.agent.loop import Agent
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.options import machine_options
from shardtune.workers.config.overrides import overridden
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.launchers.base import LaunchFailed, RanksAlive
from shardtune.workers.machine import device_hold, device_lock, hardware_speed
from shardtune.workers.machine.device_watch import DevicesUnfit
from shardtune.workers.machine.gpu_peaks import figures
from shardtune.workers.machine.inventory import DetectionFailed, Libraries, find_gpus, fingerprint, inventory, ranks_of
from shardtune.workers.machine.library_probe import LibraryProbe
from shardtune.workers.machine.offered_inventory import look_again, offer
from shardtune.workers.trial_dir import DiskFull, TrialDir

DONE, COULD_NOT_WORK, BAD_INPUT, TRIAL_FAILED, INTERRUPTED = 0, 1, 2, 3, 130

_TASK: TypeAdapter[Task] = TypeAdapter(Task)

log = logging.getLogger("workers")


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
        device_lock.DevicesBusy,
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
    return message if message.startswith(f"{field} (") else f"{field}: {message} (got {given!r:.200})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shardtune.workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(command=run_agent)
    parser.add_argument("--service", metavar="URL", help="base URL of the service")
    parser.add_argument("--name", help="stable name of this worker (default: host name and work directory)")
    machine_options(parser)
    commands = parser.add_subparsers(title="other commands", metavar="COMMAND")

    trial = commands.add_parser("run-trial", help="run one trial from a JSON file, without a service")
    trial.set_defaults(command=run_trial)
    trial.add_argument("file", type=Path, help="a TrialTask as JSON, such as best/config.json; - reads stdin")
    trial.add_argument("--json", action="store_true", help="print one JSON object instead of a summary")
    trial.add_argument("--deadline-s", type=float, default=3600.0, help="hard limit of the trial")
    trial.add_argument("--no-progress-s", type=float, default=600.0, help="limit without any step")
    machine_options(trial)

    speed = commands.add_parser("measure-hardware", help="measure what predictions need: a minute, kept for the agent")
    speed.set_defaults(command=measure_hardware)
    speed.add_argument("--json", action="store_true", help="print a HardwareReport as JSON")
    machine_options(speed)

    look = commands.add_parser("detect", help="print what this machine offers")
    look.set_defaults(command=detect)
    look.add_argument("--json", action="store_true", help="print an Inventory as JSON")
    machine_options(look)
    return parser


def _settings(options: argparse.Namespace) -> WorkerSettings:
    given = {name: value for name, value in vars(options).items() if name in WorkerSettings.model_fields}
    return WorkerSettings(**{name: value for name, value in given.items() if value is not None})


def run_agent(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Serve trials until interrupted."""
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    interrupt = Interrupt().install()
    with device_hold.hold(settings, settings.ranks) as (gpus, launcher):
        probe = LibraryProbe.start(gpus, ranks_of(gpus, settings.ranks))
        prepared = device_hold.prepare(settings, launcher, interrupt)
        if interrupt or prepared is None:
            return DONE
        libraries = probe.result().updated(prepared.versions)
        offered = offer(settings, gpus, libraries, allowed, isolation=prepared.isolation)
        rates = ", ".join(f"{flops_per_s(rate)} in {dtype}" for dtype, rate in offered.matmul_flops.items())
        log.info("a rank multiplies at %s; native here: %s", rates, offered.fingerprint.native_dtypes)
        place = Workplace(
            work_dir=settings.work_dir.resolve(),
            launcher=launcher,
            fingerprint=offered.fingerprint,
            ranks=offered.cluster.world_size,
            peak_flops=offered.peak_flops,
            matmul_flops=offered.matmul_flops,
            min_free_gib=settings.min_free_gib,
            allowed=allowed,
        )
        client = WorkerClient(settings.service, keys=options.keys, proxy=settings.proxy)
        try:
            look = partial(look_again, settings, libraries)
            Agent(settings, client, place, offered, interrupt, look).run()
        finally:
            client.close()
    return DONE


def run_trial(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Run one task from a file and print what it came to."""
    task = read_task(options.file)
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    allowed.check(task.model)
    ranks = None if task.kind == "profile" else task.cluster.world_size
    interrupt = Interrupt().install()
    with device_hold.hold(settings, ranks) as (gpus, launcher):
        # One trial: it builds what it needs, and most need nothing.
        prepared = device_hold.prepare(settings.model_copy(update={"build_operators": False}), launcher, interrupt)
        if interrupt or prepared is None:
            return INTERRUPTED
        detected = fingerprint(gpus, Libraries().updated(prepared.versions))
        found = overridden(detected, settings.fingerprint_override)
        place = Workplace(
            work_dir=settings.work_dir.resolve(),
            launcher=launcher,
            fingerprint=found,
            ranks=ranks or 1,
            peak_flops=figures(found.gpu).peak_bf16_flops,
            min_free_gib=settings.min_free_gib,
            allowed=allowed,
        )
        launcher.require_fit(lambda: bool(interrupt))
        attempted = attempt(
            place,
            task,
            lambda: TrialDir.create(place.work_dir, "run-trial", task, found, place.min_free_gib),
            RunLimits(options.deadline_s, options.no_progress_s),
            lambda: interrupt.reason,
        )
    if attempted is None:
        return INTERRUPTED
    if attempted.log_tail:
        print(attempted.log_tail, file=sys.stderr)
    _print(attempted.result.model_dump(mode="json"), options.json)
    return TRIAL_FAILED if isinstance(attempted.result, Failure) else DONE


def read_task(path: Path) -> Task:
    """A task from a file, `-` for stdin; without `kind` it is a trial.

    Raises:
        ValueError: the file is not JSON, or not a task.
    """
    text = sys.stdin.read() if str(path) == "-" else path.read_text()
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"file ({path}) is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"file ({path}) must hold one JSON object with model, workload, cluster and config")
    return _TASK.validate_python({"kind": "trial", **content})


def measure_hardware(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Measure matrix products, copies, launches and collectives; the agent offers the result from its next start on."""
    interrupt = Interrupt().install()
    quick = settings.model_copy(update={"build_operators": False})
    with device_hold.hold(settings, settings.ranks) as (gpus, launcher):
        libraries = LibraryProbe.start(gpus).result()
        if device_hold.prepare(quick, launcher, interrupt) is None:
            return INTERRUPTED
        offered = inventory(gpus, libraries, settings.ranks, settings.memory_gib)
        report = hardware_speed.measure(launcher, offered, settings.work_dir, lambda: bool(interrupt))
    if report is None:
        return INTERRUPTED
    _print(report.model_dump(mode="json"), options.json)
    return DONE


def detect(settings: WorkerSettings, options: argparse.Namespace) -> int:
    """Print what this machine offers."""
    gpus = find_gpus().first(settings.ranks)
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    libraries = LibraryProbe.start(gpus).result()
    _print(offer(settings, gpus, libraries, allowed).model_dump(mode="json"), options.json)
    return DONE


def _print(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(value))
        return
    for name, content in value.items():
        if content not in (None, [], {}):
            print(f"{name}: {json.dumps(content)}")


if __name__ == "__main__":
    sys.exit(main())
