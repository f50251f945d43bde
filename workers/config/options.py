"""Command-line options that every command of the worker takes; their names are those of `WorkerSettings`."""

import argparse
from pathlib import Path

from shardtune.workers.config import allowlist as allowed_code


def machine_options(parser: argparse.ArgumentParser) -> None:
    """Which machine, how much of it, and what may run on it."""
    parser.add_argument("--work-dir", type=Path, metavar="DIR", help="trial directories and logs")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks (default: all GPUs, or 2 CPU ranks)")
    parser.add_argument("--memory-gib", type=float, metavar="X", help="declared memory of one CPU rank")
    allowed_code.add_options(parser)
    parser.add_argument(
        "--fingerprint-override",
        action="append",
        metavar="FIELD=VALUE",
        help="report a field of the fingerprint otherwise, marked as such, to try out what a change causes (repeatable)",
    )
    parser.add_argument("--cold", action="store_true", default=None, help="one interpreter per rank, no warm host")
    parser.add_argument(
        "--no-build-operators",
        dest="build_operators",
        action="store_false",
        default=None,
        help="leave building DeepSpeed's CPU Adam to the first trial that offloads its optimizer",
    )
