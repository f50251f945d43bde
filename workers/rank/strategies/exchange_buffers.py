"""Memory that pipeline stages take for exchanges in a whole step, held in steps of fewer micro batches."""

from collections.abc import Sequence

import torch
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage


class ExchangeBuffers:
    """Memory that a whole step needs for exchanges between pipeline stages and that a short step (one with fewer micro
    batches) would not need. It is allocated so that a short step reaches the peak of the whole one.

    Until 2.14, torch's stages allocate a receive buffer for each micro batch of a step before they run; in 2.15 they
    allocate it when the receive begins. In all versions, schedules with several stages on a rank wait for their sends
    only at the step's end, and hold what they sent until then.
    """

    def __init__(self, stages: Sequence[PipelineStage], whole: int, hidden: torch.Tensor, *, holds_sent: bool) -> None:
        """Prepare the buffers. `hidden`: one micro batch's hidden states; `holds_sent`: whether sent hidden states stay in
        memory until the step ends."""
        self._whole, self._device = whole, stages[0].device
        received = sum((not stage.is_first) + (not stage.is_last) for stage in stages)
        exchanged = 0 if _allocates_when_receiving() else received
        if holds_sent:
            # A neighbour on the same rank is handed its input, not sent it.
            here = {stage.stage_index for stage in stages}
            sent_to = [
                neighbour
                for stage in stages
                for neighbour in (stage.stage_index - 1, stage.stage_index + 1)
                if 0 <= neighbour < stage.num_stages and neighbour not in here
            ]
            exchanged += len(sent_to)
        self._bytes_per_micro_batch = exchanged * hidden.numel() * hidden.element_size()
        self._most, self._held = 0, torch.empty(0, dtype=torch.uint8)

    def hold_for(self, micro_batches: int) -> None:
        """Allocate as many bytes as a whole step needs for exchanges in addition to what a step of this many micro
        batches needs."""
        if micro_batches > self._most:
            self._most = micro_batches
            # Released first: both at once would be a peak of their own.
            del self._held
            missing = self._bytes_per_micro_batch * (self._whole - micro_batches)
            self._held = torch.empty(missing, dtype=torch.uint8, device=self._device)


def _allocates_when_receiving() -> bool:
    return hasattr(getattr(pipelining.stage, "_RecvInfo", None), "allocate_buffer")
