"""Import a module on the first use of one of its attributes.

The database, the predictor and the HTTP client take seconds to import. `--help` and errors in options need none of
them. In the module of a command:

    if TYPE_CHECKING:
        from shardtune.service.cli import local_stack
    else:
        local_stack = LazyModule("shardtune.service.cli.local_stack")
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def load(name: str) -> ModuleType:
    """Import a module while garbage collection is off."""
    if name in sys.modules:
        return import_module(name)
    # httpx imports its own command line, with rich and pygments, wherever these are installed.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    # An import creates hardly any garbage, but its many allocations trigger collections: a fifth of its time.
    with without_collections():
        return import_module(name)


@contextmanager
def without_collections() -> Iterator[None]:
    """Turn garbage collection off within a `with` block, for work that takes seconds and creates hardly any garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load_numpy() -> None:
    """Import numpy without threads of its linear algebra, of which predictions need little.

    OpenBLAS starts a thread for each core when numpy is imported. Each of them keeps its core busy for some 0.05 s.
    """
    is_stated = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        load("numpy")
    finally:
        # Programs that this process starts choose for themselves.
        if not is_stated:
            del os.environ[_BLAS_THREADS]


class LazyModule:
    """Proxy for a module, which is imported when one of its attributes is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(load(self._module), name)
