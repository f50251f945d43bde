"""Device of a rehearsed rank: parameters get sizes and no values."""

import contextlib

from torch._subclasses.fake_tensor import FakeTensorMode

from shardtune.workers.rank.device import CpuDevice


class RehearsedDevice(CpuDevice):
    """CPU whose tensors have no memory.

    Not CUDA: torch built for CPUs can name tensors of a GPU and not fill them, and a GPU of this host must stay free.
    """

    def __init__(self) -> None:
        # Tensors of the batch are real and mix with those without values.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def materializing(self) -> contextlib.AbstractContextManager[object]:
        return self.mode
