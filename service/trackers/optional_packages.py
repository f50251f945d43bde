"""Import packages that only some users have; an error names the package and the command that installs it."""

from importlib import import_module
from typing import Any


class MissingPackage(ImportError):
    """Error: a package is missing that is needed only for the feature in use, and so is not installed by default."""


def load(module: str, purpose: str, distribution: str | None = None) -> Any:
    """Import a module of an optional package.

    Raises:
        MissingPackage: the package is not installed; the message names `purpose`, the package and the remedy.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # A package that is installed but lacks one of its own is broken, and keeps its own error.
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        name = distribution or module
        raise MissingPackage(
            f"{purpose} needs the package {name}, which is not installed; run `pip install {name}`", name=module
        ) from None
