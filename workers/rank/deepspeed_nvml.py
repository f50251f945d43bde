"""Import hook that keeps DeepSpeed from initialising NVML in the fork server, before ranks are forked from it.

DeepSpeed's accelerator would then read CUDA_VISIBLE_DEVICES as NVML's indices, which UUIDs are not (deepspeed 0.19.8,
 `CUDA_Accelerator._get_nvml_gpu_id`). Without NVML DeepSpeed asks torch how much memory is free.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_MODULE = "deepspeed.accelerator.cuda_accelerator"


class _WithoutNvml(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        # The module is patched as it loads: DeepSpeed makes its accelerator during the same import.
        module.CUDA_Accelerator._init_pynvml = lambda _: None


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _MODULE else None
        if spec is not None and spec.origin is not None:
            spec.loader = _WithoutNvml(fullname, spec.origin)
        return spec


def install_hook() -> None:
    """Install the hook that keeps DeepSpeed from initialising NVML; call this before DeepSpeed is imported, which
    creates its accelerator object."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
