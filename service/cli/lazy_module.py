"""Modules of which a command needs nothing before it runs: imported when something of them is first asked for.

The database, the predictor and the HTTP client take seconds to import; who asks for help, or gives an option that is wrong,
waits for none of them. In the module of a command:

    if TYPE_CHECKING:
        from shardtune.service.cli import stack
    else:
        stack = LazyModule("shardtune.service.cli.stack")
"""

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)
