"""Modules of which a command needs nothing before it runs: imported when something of them is first asked for.

The database, the predictor and the HTTP client take seconds to import; who asks for help, or gives an option that is wrong,
waits for none of them. In the module of a command:

    if TYPE_CHECKING:
        from shardtune.service.cli import local_stack
    else:
        local_stack = LazyModule("shardtune.service.cli.local_stack")
"""

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def load(name: str) -> ModuleType:
    """Import a module without looking for garbage meanwhile: there is hardly any, and the looks take a fifth of the time."""
    if name in sys.modules:
        return import_module(name)
    # httpx imports the command line of its own, with rich and pygments, wherever these are installed.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()


class LazyModule:
    """Stands for a module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(load(self._module), name)
