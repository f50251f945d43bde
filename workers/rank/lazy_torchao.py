"""Import hook that keeps torchao from being imported before a trial uses it.

torchao (0.18.0) asks the GPU for its compute capability while it is imported (`mx_formats/kernels.py`). That initialises
CUDA: no rank could be forked from such a process, and a rank would apply its allocator settings too late. transformers
(5.23.0) imports torchao with every model, only to save quantised weights, and PEFT (0.21.2) with every layer that gets LoRA.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_TORCHAO = "torchao"


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


class _LoraLoader(SourceFileLoader):
    """Loader of the module of PEFT that asks of each layer whether torchao has quantised its weights. None has such
    weights before torchao is imported."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        is_available = module.is_torchao_available
        vars(module).update(is_torchao_available=lambda: _TORCHAO in sys.modules and is_available())


_LOADERS: dict[str, type[SourceFileLoader]] = {
    "transformers.quantizers.quantizer_torchao": _QuantizerLoader,
    "peft.tuners.lora.torchao": _LoraLoader,
}


class _TorchaoFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = _LOADERS.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if loader is not None else None
        if loader is not None and spec is not None and spec.origin is not None:
            spec.loader = loader(fullname, spec.origin)
        return spec


def install_hook() -> None:
    """Install the hook that delays the import of torchao; call this before transformers or PEFT is imported."""
    if not any(isinstance(finder, _TorchaoFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchaoFinder())


def _flatten_tensor_state_dict(*args: Any) -> Any:
    """Import torchao and call its function of this name, by which transformers saves quantised weights."""
    support = importlib.import_module("torchao.prototype.safetensors.safetensors_support")
    return support.flatten_tensor_state_dict(*args)
