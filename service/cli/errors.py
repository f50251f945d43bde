"""Errors of the command line, and their exit codes (documented in docs/reference/cli.md)."""

from collections.abc import Sequence

from shardtune.api_schemas.printable_text import printable

BAD_INPUT = 2
NOTHING_FEASIBLE = 3
PLATFORM_FAILURE = 4
# 128 + SIGINT, as shells report a command that Ctrl-C ended.
INTERRUPTED = 130


class CliError(Exception):
    """Expected failure of a command, with a message for a person. `main` prints its lines and exits with
    `exit_code`."""

    exit_code = PLATFORM_FAILURE

    def __init__(self, *lines: str) -> None:
        # A file's own words, such as a key, may hold what a terminal takes for commands.
        self.lines: Sequence[str] = ["\n".join(map(printable, line.split("\n"))) for line in lines]
        super().__init__("\n".join(self.lines))


class InputError(CliError):
    """Error that the user's file, option or request cannot be used; each line of the message names field, value and
    remedy."""

    exit_code = BAD_INPUT


class NothingFeasible(CliError):
    """Error that the search ended without a configuration to recommend: no configuration fits, or only one backend was
    tried and no second one confirms what it trains."""

    exit_code = NOTHING_FEASIBLE


class PlatformFailure(CliError):
    """Error that the service, the worker or the machine failed, and not the user's input."""

    exit_code = PLATFORM_FAILURE


class Interrupted(CliError):
    """Interruption of a command by Ctrl-C or SIGTERM; results up to then are kept."""

    exit_code = INTERRUPTED
