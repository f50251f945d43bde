"""Detection of the dtypes that this machine computes natively, and of the FLOP/s of one rank's matrix products in them;
takes half a second."""

import os
import platform
import time

import torch

from shardtune.api_schemas.base import Dtype
from shardtune.api_schemas.strategies.rank_environment import threads_of
from shardtune.workers.rank.device import Device, clock, of_kind
from shardtune.workers.rank.rank_context import device_kind

_SIZE = {"cpu": 256, "cuda": 4096}
"""Edge length of the square matrices that are multiplied. A product takes 28 ms on a processor that emulates the dtype
at 1.2 GFLOP/s."""
_LOOK_S = 0.1
"""Seconds for which products are repeated per dtype."""
_RATED: tuple[Dtype, ...] = ("bfloat16", "float32")
"""Dtypes whose products are timed. Float16 is not timed: no device would choose it for training, and services that
speak the first protocol version know no rate of float16."""
_ISA_WITHOUT_BFLOAT16 = ("AVX512_CORE", "AVX512_CORE_VNNI")
"""Values of ONEDNN_MAX_CPU_ISA with which oneDNN reports that bfloat16 is supported, although it converts products to
float32."""


def native_on_cpu() -> tuple[str, ...]:
    """Names of the dtypes that the processor computes natively.

    oneDNN's own check respects ONEDNN_MAX_CPU_ISA, but reports bfloat16 on every processor with AVX-512. Some of them
    have no instruction for bfloat16 products, which then run in float32 (torch 2.13, `ideep::has_bf16_type_support`).
    """
    names = ["float32"]
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        if torch.ops.mkldnn._is_mkldnn_fp16_supported():
            names.append("float16")
        is_arm = platform.machine() in ("aarch64", "arm64")
        isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
        has_instruction = is_arm or (torch.cpu._is_avx512_bf16_supported() and isa not in _ISA_WITHOUT_BFLOAT16)
        if has_instruction and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            names.append("bfloat16")
    return tuple(names)


def matmul_flops(ranks: int) -> dict[Dtype, float]:
    """FLOP/s of one rank while `ranks` ranks use the machine, for each dtype that training may choose. The caller must
    have locked the devices."""
    kind = device_kind()
    device = of_kind(kind, 0)
    torch.set_num_threads(threads_of(os.environ, len(os.sched_getaffinity(0)), ranks))
    return {dtype: 2.0 * _SIZE[kind] ** 3 / _best_s(device, getattr(torch, dtype)) for dtype in _RATED}


def _best_s(device: Device, dtype: torch.dtype) -> float:
    """Seconds of the fastest of several matrix products. The fastest is taken because other work of a starting machine
    can only slow products down."""
    size = _SIZE[device.tensors.type]
    first, second = (torch.randn(size, size, device=device.tensors).to(dtype) for _ in range(2))
    best_s, begin = float("inf"), 0.0
    first @ second  # The first product includes choosing, compiling and loading kernels.
    ends_s = time.perf_counter() + _LOOK_S
    while begin < ends_s:
        begin = clock(device)
        first @ second
        best_s = min(best_s, clock(device) - begin)
    return best_s
