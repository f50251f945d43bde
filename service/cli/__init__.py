"""The `shardtune` command line: commands, local processes, the live table. Talks to the service over HTTP only."""

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardtune.service.cli import missing_extras
from shardtune.service.cli.errors import BAD_INPUT, CliError, InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.process import own_command

if TYPE_CHECKING:
    from shardtune.service.cli import terminal
    from shardtune.service.cli.commands import app as command_table
else:
    command_table = LazyModule("shardtune.service.cli.commands.app")
    terminal = LazyModule("shardtune.service.cli.terminal")

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; an expected failure is printed, not raised.

    `arguments`: the command with its options; if None, those with which the process was started.
    """
    if arguments is None:
        # The process ends with the command. Python would then search all objects for garbage once more, which took longer
        # than a tenth of a prediction. Functions registered later run before this one.
        atexit.register(gc.freeze)
    with terminal.printable_output():
        try:
            _check_characters(arguments or ())
            command_table.app(args=None if arguments is None else list(arguments))
        except CliError as error:
            for line in error.lines:
                sys.stderr.write(f"{own_command.as_called(line)}\n")
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
