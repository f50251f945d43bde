"""Import hook that keeps torchao and bitsandbytes from being imported before a trial uses them.

Both ask the GPU for its compute capability while they are imported (torchao 0.18.0 in `mx_formats/kernels.py`, bitsandbytes
0.50.2 in `cuda_specs.py`). That initialises CUDA: no rank could be forked from such a process, and a rank would apply its
allocator settings too late. transformers (5.23.0) imports torchao with every model, only to save quantised weights. PEFT
(0.21.2) imports bitsandbytes at once, and both with every layer that gets LoRA.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_TORCHAO, _BITSANDBYTES = "torchao", "bitsandbytes"


class _LateLibrary:
    """Stand-in for a library in another module's globals. It imports the library when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self._library = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._library), name)


class _QuantizerLoader(SourceFileLoader):
    """Loader of the module of transformers whose first lines import torchao, if it is installed. The module is otherwise
    unchanged: it still finds torchao, and imports it to quantise and to save weights."""

    def exec_module(self, module: ModuleType) -> None:
        utilities: Any = importlib.import_module("transformers.utils")
        is_available = utilities.is_torchao_available
        utilities.is_torchao_available = lambda *_: False
        try:
            super().exec_module(module)
        finally:
            utilities.is_torchao_available = is_available
        vars(module).update(is_torchao_available=is_available, flatten_tensor_state_dict=_flatten_tensor_state_dict)


class _HelpersLoader(SourceFileLoader):
    """Loader of the module of PEFT whose first lines import bitsandbytes, if it is installed."""

    def exec_module(self, module: ModuleType) -> None:
        is_needed = _BITSANDBYTES not in sys.modules and importlib.util.find_spec(_BITSANDBYTES) is not None
        if not is_needed:
            super().exec_module(module)
            return
        # Python raises an ImportError for such an entry, which the module expects where the library is missing.
        sys.modules[_BITSANDBYTES] = None  # type: ignore[assignment]
        try:
            super().exec_module(module)
        finally:
            del sys.modules[_BITSANDBYTES]
        vars(module).update(bnb=_LateLibrary(_BITSANDBYTES))


class _LoraLoader(SourceFileLoader):
    """Loader of modules of PEFT that ask of each layer whether a library has quantised its weights. None has such weights
    before the library is imported."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for check, library in _CHECKS.items():
            if hasattr(module, check):
                vars(module)[check] = _only_if_imported(library, getattr(module, check))


_CHECKS = {
    "is_torchao_available": _TORCHAO,
    "is_bnb_available": _BITSANDBYTES,
    "is_bnb_4bit_available": _BITSANDBYTES,
}
"""Names of PEFT's checks whether a library is installed, with the library."""
_LOADERS: dict[str, type[SourceFileLoader]] = {
    "transformers.quantizers.quantizer_torchao": _QuantizerLoader,
    "peft.helpers": _HelpersLoader,
    "peft.tuners.lora.model": _LoraLoader,
    "peft.tuners.lora.torchao": _LoraLoader,
}


class _LateFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = _LOADERS.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if loader is not None else None
        if loader is not None and spec is not None and spec.origin is not None:
            spec.loader = loader(fullname, spec.origin)
        return spec


def install_hook() -> None:
    """Install the hook that delays the import of both libraries; call this before transformers or PEFT is imported."""
    if not any(isinstance(finder, _LateFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LateFinder())


def _only_if_imported(library: str, check: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: library in sys.modules and check()


def _flatten_tensor_state_dict(*args: Any) -> Any:
    """Import torchao and call its function of this name, by which transformers saves quantised weights."""
    support = importlib.import_module("torchao.prototype.safetensors.safetensors_support")
    return support.flatten_tensor_state_dict(*args)
