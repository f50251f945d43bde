"""The option `--wait-for-quiet [MINUTES]` of `tune`: its default, its limits, and its form without a number."""

from collections.abc import Sequence

from shardtune.api_schemas.studies.study_request import MOST_QUIET_WAIT_S
from shardtune.service.cli.errors import InputError

WAIT_FOR_QUIET = "--wait-for-quiet"
DEFAULT_WAIT_MINUTES = 30
"""Total minutes that a study waits for a quiet machine if `--wait-for-quiet` has no number."""
_MOST_MINUTES = MOST_QUIET_WAIT_S / 60


def with_default_minutes(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which each bare `--wait-for-quiet` has its default number of minutes."""
    # Typer 0.29 has no options with an optional value.
    completed: list[str] = []
    for position, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if argument == WAIT_FOR_QUIET and not _is_number(following):
            completed.append(str(DEFAULT_WAIT_MINUTES))
    return completed


def check_wait(minutes: float | None, *, resume: bool) -> None:
    """Reject a value of `--wait-for-quiet` that is not positive. Also reject the option together with `--resume`,
    which continues a study without changing it.

    Raises:
        InputError: names the option, its value and the remedy.
    """
    if minutes is None:
        return
    if not 0 < minutes <= _MOST_MINUTES:
        raise InputError(
            f"{WAIT_FOR_QUIET} ({minutes:g}) must be above 0 and at most {_MOST_MINUTES:g} minutes; "
            f"leave the number out for {DEFAULT_WAIT_MINUTES}"
        )
    if resume:
        raise InputError(
            f"{WAIT_FOR_QUIET} and --resume exclude each other: the study keeps its own wait; "
            "give it with --add-pairs once the study has ended"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
