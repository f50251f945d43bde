"""Versions of the libraries that a measurement ran with."""

import importlib.metadata

import torch


def library_versions() -> dict[str, str | None]:
    """Versions of torch, deepspeed, transformers, CUDA and NCCL; found without using a device."""
    return {
        "torch": torch.__version__,
        "deepspeed": _installed("deepspeed"),
        "transformers": _installed("transformers"),
        "cuda": torch.version.cuda,
        # A wheel without CUDA has no `nccl.version`.
        "nccl": ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        if torch.version.cuda
        else None,
    }


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
