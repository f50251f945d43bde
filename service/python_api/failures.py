"""Turn expected failures of commands and tools into the exceptions of the Python API."""

from collections.abc import Iterator
from contextlib import contextmanager

from shardtune.service.cli import missing_extras
from shardtune.service.cli.errors import CliError, InputError
from shardtune.service.mcp.errors import ToolRejected
from shardtune.service.trackers.optional_packages import MissingPackage


@contextmanager
def python_errors() -> Iterator[None]:
    """Convert errors of the command line to errors of the Python API. Messages then name arguments in place of
    options, and a missing package of an optional extra becomes `MissingPackage`."""
    try:
        yield
    except CliError as error:
        # Options have the names of the arguments.
        raise type(error)(*(line.removeprefix("--") for line in error.lines)) from None
    except ToolRejected as error:
        raise InputError(*error.lines) from None
    except ModuleNotFoundError as error:
        line = missing_extras.remedy(error)
        if line is None:
            raise
        raise MissingPackage(line, name=error.name) from None
