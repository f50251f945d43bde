"""The `shardtune` command line: commands, local processes, the live table. Talks to the service over HTTP only."""

import sys
from collections.abc import Sequence

from shardtune.service.cli import missing_extras
from shardtune.service.cli.commands.app import app
from shardtune.service.cli.errors import BAD_INPUT, CliError, InputError
from shardtune.service.cli.terminal import printable_output

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; an expected failure is printed, not raised."""
    with printable_output():
        try:
            _check_characters(arguments or ())
            app(args=None if arguments is None else list(arguments))
        except CliError as error:
            for line in error.lines:
                sys.stderr.write(f"{line}\n")
            sys.exit(error.exit_code)
        except ModuleNotFoundError as error:
            remedy = missing_extras.remedy(error)
            if remedy is None:
                raise
            sys.stderr.write(f"{remedy}\n")
            sys.exit(BAD_INPUT)


def _check_characters(arguments: Sequence[str]) -> None:
    """Reject arguments that contain a NUL character. A shell cannot pass such arguments, but a program that calls
    `main` can.

    Raises:
        InputError: names the option.
    """
    before = ""
    for argument in arguments:
        if "\0" in argument:
            option, has_value, _ = argument.partition("=")
            is_option = argument.startswith("-") and has_value
            name = option if is_option else before if before.startswith("-") else "argument"
            raise InputError(f"{name} ({argument!r:.200}) has a NUL character, which no path or name has; remove it")
        before = argument
