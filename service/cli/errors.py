"""Errors of the command line, and their exit codes (documented in docs/reference/cli.md)."""

from collections.abc import Sequence

from shardtune.api_schemas.printable_text import printable

BAD_INPUT = 2
NOTHING_FEASIBLE = 3
PLATFORM_FAILURE = 4
# 128 + SIGINT, as shells report a command that Ctrl-C ended.
INTERRUPTED = 130


class CliError(Exception):
    """An expected failure with a message for a person; `main` prints the lines and exits with `exit_code`."""

    exit_code = PLATFORM_FAILURE

    def __init__(self, *lines: str) -> None:
        # A file's own words, such as a key, may hold what a terminal takes for commands.
        self.lines: Sequence[str] = ["\n".join(map(printable, line.split("\n"))) for line in lines]
        super().__init__("\n".join(self.lines))


class InputError(CliError):
    """The user's file, option or request cannot be used; every line names field, value and remedy."""

    exit_code = BAD_INPUT


class NothingFeasible(CliError):
    """The search ended without a configuration to recommend: none fits, or no second backend confirmed one."""

    exit_code = NOTHING_FEASIBLE


class PlatformFailure(CliError):
    """The service, the worker or the machine failed, not the input."""

    exit_code = PLATFORM_FAILURE


class Interrupted(CliError):
    """Ctrl-C or SIGTERM; results so far are kept."""

    exit_code = INTERRUPTED
