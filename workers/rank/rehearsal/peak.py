"""Peak of a rehearsed rank's tensors, counted by torch's memory tracker."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor._sharding_prop import ShardingPropagator

_NAMES = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "backward",
    "Activation": "forward",
    "Temp": "backward",
    "Optstate": "optimizer",
    "Other": "other",
}
"""Names of the parts of peak memory, by the kinds of tensors that torch's MemTracker distinguishes. Gradients of shards
count as memory of the backward pass, in which torch first sees them."""


class PeakTracker(MemTracker):  # type: ignore[no-untyped-call]
    """Tracker of the bytes of all tensors. It leaves out torch's statistics of single modules.

    Those statistics reject a second forward pass of a model (torch 2.13), which each further micro batch needs.
    """

    _is_paused = False

    def __init__(self, *, clones_reductions: bool = False) -> None:
        """Prepare the tracker. `clones_reductions`: whether ranks reduce through gloo, whose reduce-scatter works on a clone
        of its input."""
        super().__init__()
        self._clones_reductions = clones_reductions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count the memory of its results."""
        if self._is_paused:
            return func(*args, **(kwargs or {}))
        # The fake process group has no such clone, and CPU ranks hold it at their peak (torch 2.13, ProcessGroupGloo).
        if self._clones_reductions and func is torch.ops.c10d._reduce_scatter_base_.default:
            clone = super().__torch_dispatch__(torch.ops.aten.clone.default, types, (args[1],))  # type: ignore[no-untyped-call]
            result = super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
            del clone
            return result
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def without_sharding_rules(self) -> Iterator[None]:
        """Context in which operators are not counted that DTensor runs on whole tensors only to learn the shapes of
        results."""
        # They have no memory on a rank. The tracker knows them by a fake mode of their own, and DTensor takes the one that
        # is active (2.13): logits of the whole vocabulary would count, which no rank has.
        propagator: Any = ShardingPropagator
        original = propagator._propagate_tensor_meta_non_cached

        def propagate(*args: Any) -> Any:
            self._is_paused = True
            try:
                return original(*args)
            finally:
                self._is_paused = False

        propagator._propagate_tensor_meta_non_cached = propagate
        try:
            yield
        finally:
            propagator._propagate_tensor_meta_non_cached = original

    def _pre_fw_hook(self, module: Any, inputs: Any) -> None: ...

    def _post_fw_hook(self, module: Any, inputs: Any, outputs: Any) -> None: ...

    def _pre_bw_hook(self, module: Any, args: Any) -> None: ...

    def _post_bw_hook(self, module: Any, args: Any) -> None: ...

    def forget_peak(self) -> None:
        """Forget the peak so far; the next peak starts from the memory that is allocated now."""
        self._peak_mem.clear()
        self._peak_mem_snap.clear()

    def peak_parts(self) -> dict[str, int]:
        """Bytes at the peak, by part (such as forward, backward and optimizer)."""
        snapshot = self.get_tracker_snapshot("peak").get(torch.device("cpu"), {})
        parts: dict[str, int] = {}
        for kind, size in snapshot.items():
            name = _NAMES.get(str(getattr(kind, "value", kind)))
            if name is not None and size:
                parts[name] = parts.get(name, 0) + int(size)
        return parts
