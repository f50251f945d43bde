"""`python -m tests.lab`: make, use, hurt and take down a laboratory by hand. Exit codes: 0 done, 1 could not, 2 bad input."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import get_args

from tests.lab import requirements
from tests.lab.claim import MARK, Engine, NoLaboratory, Plan
from tests.lab.laboratory import Laboratory, described

DONE, COULD_NOT, BAD_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except NoLaboratory as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return COULD_NOT
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lab", type=int, default=0, metavar="N", help="its number, where there are several (default 0)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="make hosts, links and daemons")
    up.set_defaults(command=_up)
    up.add_argument("--hosts", type=int, default=2)
    up.add_argument("--ranks", type=int, default=2, help="per host")
    up.add_argument("--inter-mbit", type=int, default=0, help="of each host's link; 0: as much as it can")
    up.add_argument("--engine", choices=get_args(Engine), default="none")
    up.add_argument("--json", action="store_true")
    execute = commands.add_parser("exec", help="run a command on a host: exec n0 hostname")
    execute.set_defaults(command=_execute)
    execute.add_argument("host")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    for name, help_text, command in (
        ("cut", "cut a host's link", lambda lab, host: lab.cut(host)),
        ("kill", "cut a host's power", lambda lab, host: lab.host(host).cut_power()),
        ("stop", "freeze a host", lambda lab, host: lab.host(host).stop()),
        ("restore", "undo cut, stop or kill", lambda lab, host: lab.restore(host)),
    ):
        command_parser = commands.add_parser(name, help=help_text)
        command_parser.add_argument("host")
        command_parser.set_defaults(command=_on_host, act=command)
    down = commands.add_parser("down", help="take all of it away, also what a killed `up` left")
    down.set_defaults(command=_down)
    return parser


def _up(options: argparse.Namespace) -> int:
    if lacking := requirements.lacking(options.engine):
        raise NoLaboratory(f"a laboratory with --engine {options.engine} needs {lacking}")
    began_s = time.monotonic()
    laboratory = Laboratory.up(Plan(options.hosts, options.ranks, options.inter_mbit, options.engine), options.lab)
    answer = described(laboratory, time.monotonic() - began_s)
    print(json.dumps(answer) if options.json else _words(answer))
    return DONE


def _words(answer: dict[str, object]) -> str:
    hosts = answer["hosts"]
    assert isinstance(hosts, list)
    named = ", ".join(f"{host['name']} ({host['address']})" for host in hosts)
    return f"{named}: engine {answer['engine']}, {answer['inter_mbit'] or 'unshaped'} Mbit/s, up in {answer['up_s']} s"


def _execute(options: argparse.Namespace) -> int:
    laboratory = Laboratory.at(options.lab)
    words = [word for place, word in enumerate(options.words) if place or word != "--"]
    if not words:
        raise NoLaboratory("exec HOST needs a command: exec n0 hostname")
    command = laboratory.host(options.host).command(words)
    os.execvpe(command[0], command, {**os.environ, **laboratory.environment, MARK: str(laboratory.claim.folder)})


def _on_host(options: argparse.Namespace) -> int:
    options.act(Laboratory.at(options.lab), options.host)
    return DONE


def _down(options: argparse.Namespace) -> int:
    Laboratory.at(options.lab).down()
    return DONE


if __name__ == "__main__":
    sys.exit(main())
