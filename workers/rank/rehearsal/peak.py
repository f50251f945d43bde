"""Peak of a rehearsed rank's tensors, counted by torch's memory tracker."""

from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker

_NAMES = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "backward",
    "Activation": "forward",
    "Temp": "backward",
    "Optstate": "optimizer",
    "Other": "other",
}
"""Names of parts of the peak by torch's names of kinds of tensors. Gradients of shards count as made in backward, where
torch first sees them."""


class PeakTracker(MemTracker):
    """Tracker of all bytes of tensors, without torch's statistics of single modules.

    Those reject a second forward pass of a model (torch 2.13), as each further micro batch is.
    """

    def _pre_fw_hook(self, module: Any, inputs: Any) -> None: ...

    def _post_fw_hook(self, module: Any, inputs: Any, outputs: Any) -> None: ...

    def _pre_bw_hook(self, module: Any, args: Any) -> None: ...

    def _post_bw_hook(self, module: Any, args: Any) -> None: ...

    def forget_peak(self) -> None:
        """Begin a new peak from what is allocated now."""
        self._peak_mem.clear()
        self._peak_mem_snap.clear()

    def peak_parts(self) -> dict[str, int]:
        """Bytes at the peak by part."""
        snapshot = self.get_tracker_snapshot("peak").get(torch.device("cpu"), {})
        parts: dict[str, int] = {}
        for kind, size in snapshot.items():
            name = _NAMES.get(str(getattr(kind, "value", kind)))
            if name is not None and size:
                parts[name] = parts.get(name, 0) + int(size)
        return parts
