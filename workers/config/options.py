"""Command-line options of every command of the worker; their names are those of `WorkerSettings`.

Imports only fast modules: `--help` waits for every import here.
"""

import argparse
from pathlib import Path
from typing import get_args

from shardtune.api_schemas.machines.engines import LauncherName

_MODELS = "shardtune.models"


def machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options for the machine, its ranks and the user code that may run on it."""
    parser.add_argument("--work-dir", type=Path, metavar="DIR", help="trial directories and logs")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks (default: all GPUs, or 2 CPU ranks)")
    parser.add_argument("--memory-gib", type=float, metavar="X", help="declared memory of one CPU rank")
    _allowed_code(parser)
    parser.add_argument(
        "--fingerprint-override",
        action="append",
        metavar="FIELD=VALUE",
        help="report another value for a field of the fingerprint, marked as such, to try out the effects of a change (repeatable)",
    )
    gang_options(parser)
    parser.add_argument("--cold", action="store_true", default=None, help="one interpreter per rank, no fork server")
    parser.add_argument(
        "--no-measure-rates",
        dest="measure_rates",
        action="store_false",
        default=None,
        help="do not measure the rates of an unknown machine at the first start",
    )
    parser.add_argument(
        "--no-build-operators",
        dest="build_operators",
        action="store_false",
        default=None,
        help="leave building DeepSpeed's CPU Adam to the first trial that offloads its optimizer, within its time",
    )


def _allowed_code(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options for user code that the worker's owner allows."""
    for option, field_name, value, meaning in (
        ("--allow-model", "allowed_models", "NAME", f"installed entry point of the group {_MODELS}"),
        ("--allow-script", "allowed_scripts", "NAME=COMMAND", "training script with its arguments"),
    ):
        text = f"{meaning} that studies may name (repeatable)"
        parser.add_argument(option, action="append", dest=field_name, metavar=value, help=text)


def gang_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options for a gang (several hosts that act as one worker)."""
    parser.add_argument(
        "--launcher",
        choices=get_args(LauncherName),
        help="run ranks here, or over the hosts of a Slurm job or a Ray cluster",
    )
    for option, kind, value, meaning in (
        ("--nodes", int, "N", "hosts to train over (Slurm default: all of the job)"),
        ("--node-dir", Path, "DIR", "trial directories on each host, not shared (default: in its temporary folder)"),
        ("--shared-dir", Path, "DIR", "folder that every host sees, for resume checks"),
        ("--interface", str, "NAME", "network interface between the hosts"),
        ("--meet-ports", str, "FIRST-LAST", "ports of the store for the ranks' rendezvous"),
        ("--gang-wait-s", float, "S", "seconds to wait for missing hosts"),
        ("--node-lease-s", float, "S", "seconds of silence after which a host's ranks have certainly ended"),
        ("--ray-address", str, "ADDRESS", "address of the Ray cluster (default: RAY_ADDRESS)"),
    ):
        parser.add_argument(option, type=kind, metavar=value, help=meaning)
    parser.add_argument(
        "--srun-option",
        action="append",
        dest="srun_options",
        metavar="OPTION",
        help="option for srun, such as --srun-option=--container-image=… (repeatable)",
    )
